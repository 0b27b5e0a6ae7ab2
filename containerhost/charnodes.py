"""Character nodes of a running container: given and taken in its control group and in its /dev.

The control group decides (cgroup v1, Documentation/admin-guide/cgroup-v1/devices.rst); the node only makes the device
reachable by its name. So what is taken is denied first: whoever keeps another node of it cannot open that any more.
"""

import contextlib
import os
import stat
from collections.abc import Iterator

from containerhost.errors import HostActionFailed
from containerhost.process.processes import namespace, open_folder

Number = tuple[int, int]

CGROUPS = "/sys/fs/cgroup/devices"


def give(pid: int, path: str, number: Number, mode: int) -> None:
    """:param pid: the container's first process
    :param path: of the node, below /dev
    :raises HostActionFailed: something else is there already, or the kernel refuses; nothing was changed
    """
    require_container(pid)
    command(pid, "devices.allow", number)
    try:
        make(pid, path, number, mode)
    except (OSError, HostActionFailed) as error:
        command(pid, "devices.deny", number)
        if isinstance(error, OSError):
            raise HostActionFailed(f"cannot make {path} for process {pid}: {error.strerror}") from error
        raise


def take(pid: int, path: str, number: Number) -> None:
    """Done already when it is gone."""
    require_container(pid)
    command(pid, "devices.deny", number)
    with contextlib.suppress(FileNotFoundError), parent_of(pid, path) as (folder, name):
        if is_node(os.stat(name, dir_fd=folder, follow_symlinks=False), number):
            os.unlink(name, dir_fd=folder)


def require_container(pid: int) -> None:
    """The number of a container that ended may be a process of the host by now."""
    if namespace(pid) in (None, namespace(os.getpid())):
        raise HostActionFailed(f"process {pid} is not that of a running container")


def command(pid: int, file: str, number: Number) -> None:
    path = f"{group(pid)}/{file}"
    try:
        with open(path, "w", encoding="ascii") as attribute:
            attribute.write(f"c {number[0]}:{number[1]} rwm")
    except OSError as error:
        raise HostActionFailed(f"writing to {path} failed: {error.strerror}") from error


def group(pid: int) -> str:
    """The folder of the process's devices control group.

    :raises HostActionFailed: this host has version 2, which has no such file
    """
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8") as table:
            groups = [line.strip().split(":", 2) for line in table]
    except OSError as error:
        raise HostActionFailed(f"cannot look into process {pid}: {error.strerror}") from error
    for _, controllers, path in groups:
        if "devices" in controllers.split(","):
            return CGROUPS + path
    raise HostActionFailed("this host has control groups of version 2 only, in which no running container can be "
                           "given a device or lose one: stop the container first")


def make(pid: int, path: str, number: Number, mode: int) -> None:
    make_folder(pid, path)
    with parent_of(pid, path) as (folder, name):
        try:
            os.mknod(name, stat.S_IFCHR | mode, os.makedev(*number), dir_fd=folder)
        except FileExistsError:
            if not is_node(os.stat(name, dir_fd=folder, follow_symlinks=False), number):
                raise HostActionFailed(f"process {pid} has something else at {path}: remove it in the container, then "
                                       "try again") from None
        set_mode(folder, name, number, mode)


def set_mode(folder: int, name: str, number: Number, mode: int) -> None:
    """Past the umask. The tenant may have put a link in the node's place meanwhile: it is not followed."""
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        if is_node(os.fstat(handle), number):
            os.chmod(f"/proc/self/fd/{handle}", mode)
    finally:
        os.close(handle)


def make_folder(pid: int, path: str) -> None:
    steps = tuple(path.strip("/").split("/")[:-1])
    for depth in range(1, len(steps)):
        above = open_folder(pid, steps[:depth])
        if above is None:
            raise HostActionFailed(f"process {pid} sees no folder /{'/'.join(steps[:depth])}")
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(steps[depth], 0o755, dir_fd=above)
        finally:
            os.close(above)


@contextlib.contextmanager
def parent_of(pid: int, path: str) -> Iterator[tuple[int, str]]:
    """A handle of the node's folder, and the node's name in it.

    :raises FileNotFoundError: the container has no such folder
    """
    *steps, name = path.strip("/").split("/")
    folder = open_folder(pid, tuple(steps))
    if folder is None:
        raise FileNotFoundError(2, "its folder is missing", path)
    try:
        yield folder, name
    finally:
        os.close(folder)


def is_node(status: os.stat_result, number: Number) -> bool:
    return stat.S_ISCHR(status.st_mode) and (os.major(status.st_rdev), os.minor(status.st_rdev)) == tuple(number)
