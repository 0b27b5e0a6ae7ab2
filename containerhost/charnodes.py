# SPDX-License-Identifier: Apache-2.0
"""Character nodes of a running container: given and taken in its control group and in its /dev.

The control group decides: by a file of it in version 1 (Documentation/admin-guide/cgroup-v1/devices.rst), by a program
in version 2. The node only makes the device reachable by its name. So what is taken is denied first: whoever keeps
another node of it cannot open that any more.

The /dev of a container with a user namespace of its own belongs to that, and a node made there leads nowhere: such a
container gets a node of the host's, shown at a file of its own.
"""

import contextlib
import os
import re
import stat
from collections.abc import Iterator

from containerhost.errors import HostActionFailed
from containerhost.linux.files import closing
from containerhost.process import namespaces
from containerhost.process.processes import namespace, open_folder
from containerhost.storage import mountapi

Number = tuple[int, int]

CGROUPS = "/sys/fs/cgroup"
#: LXC's group of a container, and what an init of the container's own made below.
PAYLOAD = re.compile(r"(/lxc\.payload\.[^/]*)/.*")


def give(pid: int, path: str, number: Number, mode: int) -> None:
    """:param pid: the container's first process
    :param path: of the node, below /dev
    :raises HostActionFailed: something else is there already, or the kernel refuses; nothing was changed
    """
    require_container(pid)
    permit(pid, number, True)
    try:
        make(pid, path, number, mode)
    except (OSError, HostActionFailed) as error:
        permit(pid, number, False)
        if isinstance(error, OSError):
            raise HostActionFailed(f"cannot make {path} for process {pid}: {error.strerror}") from error
        raise


def take(pid: int, path: str, number: Number) -> None:
    """Done already when it is gone."""
    require_container(pid)
    permit(pid, number, False)
    with contextlib.suppress(FileNotFoundError), parent_of(pid, path) as (folder, name):
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if is_node(status, number):
            if status.st_dev != os.fstat(folder).st_dev:  # it is shown there, and is somewhere else
                namespaces.apart(lambda: hide(pid, folder, name), f"cannot take {path} from process {pid}")
            else:
                os.unlink(name, dir_fd=folder)


def require_container(pid: int) -> None:
    """The number of a container that ended may be a process of the host by now."""
    if namespace(pid) in (None, namespace(os.getpid())):
        raise HostActionFailed(f"process {pid} is not that of a running container")


def permit(pid: int, number: Number, allowed: bool) -> None:
    """Let the processes of the container open a device, or none of them any more."""
    found = groups(pid)
    if os.path.exists(f"{CGROUPS}/cgroup.controllers"):  # as engines tell: version 2 alone
        from containerhost import devicefilter  # noqa: PLC0415  (containers start without it, and people wait)
        devicefilter.decide(filtered(CGROUPS + found[""]), number, allowed)
        return
    group = PAYLOAD.sub(r"\1", found.get("devices", ""))
    path = f"{CGROUPS}/devices{group}/devices.{'allow' if allowed else 'deny'}"
    try:
        with open(path, "w", encoding="ascii") as attribute:
            attribute.write(f"c {number[0]}:{number[1]} rwm")
    except OSError as error:
        raise HostActionFailed(f"writing to {path} failed: {error.strerror}") from error


def groups(pid: int) -> dict[str, str]:
    """The process's control groups by controller; that of version 2 by no name (cgroups(7))."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8") as table:
            lines = [line.strip().split(":", 2) for line in table]
    except OSError as error:
        raise HostActionFailed(f"cannot look into process {pid}: {error.strerror}") from error
    return {name: path for _, controllers, path in lines for name in controllers.split(",")}


def filtered(folder: str) -> str:
    """The group, or the nearest above it, that has a program: an init of the container's own may have made others in
    the engine's."""
    from containerhost import devicefilter  # noqa: PLC0415  (likewise)
    above = folder
    while above.startswith(f"{CGROUPS}/"):
        if devicefilter.decided(above):
            return above
        above = os.path.dirname(above)
    raise HostActionFailed(f"nothing decides which devices {folder} may open, so none can be added or taken away")


def make(pid: int, path: str, number: Number, mode: int) -> None:
    """:raises HostActionFailed, OSError: something else is there already, or the kernel refuses"""
    if has_own_users(pid):
        with host_node(number, mode) as mount:
            namespaces.apart(lambda: show(pid, path, number, mount), f"cannot make {path} for process {pid}")
        return
    make_folder(pid, path)
    with parent_of(pid, path) as (folder, name):
        if not is_there(pid, path, folder, name, number):
            os.mknod(name, stat.S_IFCHR | mode, os.makedev(*number), dir_fd=folder)
        set_mode(folder, name, number, mode)


def is_there(pid: int, path: str, folder: int, name: str, number: Number, *, unfinished: bool = False) -> bool:
    """:param unfinished: an empty file is what a killed call left
    :raises HostActionFailed: something else is
    """
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    if unfinished and stat.S_ISREG(status.st_mode) and status.st_size == 0:
        return False
    if not is_node(status, number):
        raise HostActionFailed(f"process {pid} has something else at {path}: remove it in the container, then try "
                               "again")
    return True


def set_mode(folder: int, name: str, number: Number, mode: int) -> None:
    """Past the umask. The tenant may have put a link in the node's place meanwhile: it is not followed."""
    with closing(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)) as handle:
        if is_node(os.fstat(handle), number):
            os.chmod(f"/proc/self/fd/{handle}", mode)


# In a container with users of its own.


def has_own_users(pid: int) -> bool:
    return os.readlink(f"/proc/{pid}/ns/user") != os.readlink("/proc/self/ns/user")


def show(pid: int, path: str, number: Number, mount: int) -> None:
    """Ends the calling thread's life on the host. The folders and the file are the container's root's: the kernel lets
    nobody else make any there."""
    namespaces.make_files_as(*root_of(pid))
    make_folder(pid, path)
    with parent_of(pid, path) as (folder, name):
        if is_there(pid, path, folder, name, number, unfinished=True):
            return
        with contextlib.suppress(FileExistsError):
            os.mknod(name, stat.S_IFREG | 0o600, dir_fd=folder)  # whatever is there now: opening it might never end
        namespaces.enter(f"/proc/{pid}/ns/mnt")
        try:
            mountapi.place(mount, name, folder)
        except HostActionFailed:
            os.unlink(name, dir_fd=folder)
            raise


def hide(pid: int, folder: int, name: str) -> None:
    """Likewise."""
    namespaces.make_files_as(*root_of(pid))
    namespaces.enter(f"/proc/{pid}/ns/mnt")
    os.fchdir(folder)
    mountapi.unmount(name, lazily=True)
    os.unlink(name)


@contextlib.contextmanager
def host_node(number: Number, mode: int) -> Iterator[int]:
    """A node that nobody else can reach: a descriptor of a mount of it. The host's own would have the host's
    permissions. It may go once it is shown elsewhere, and not before."""
    import tempfile  # noqa: PLC0415  (likewise)
    with tempfile.TemporaryDirectory(prefix=".containerhost-", dir="/dev") as folder:
        path = os.path.join(folder, "node")
        os.mknod(path, stat.S_IFCHR, os.makedev(*number))
        os.chmod(path, mode)
        with closing(mountapi.shown_again(path)) as mount:
            yield mount


def root_of(pid: int) -> tuple[int, int]:
    """User and group on the host of the container's root."""
    user, group = (mapped_root(f"/proc/{pid}/{name}") for name in ("uid_map", "gid_map"))
    return user, group


def mapped_root(path: str) -> int:
    """Lines of user_namespaces(7): the first id inside, that outside, and how many follow one another."""
    with open(path, encoding="ascii") as table:
        for inside, outside, _ in (map(int, line.split()) for line in table):
            if inside == 0:
                return outside
    raise HostActionFailed(f"{path} has no root")


# Places.


def make_folder(pid: int, path: str) -> None:
    steps = tuple(path.strip("/").split("/")[:-1])
    for depth in range(1, len(steps)):
        above = open_folder(pid, steps[:depth])
        if above is None:
            raise HostActionFailed(f"process {pid} sees no folder /{'/'.join(steps[:depth])}")
        with closing(above), contextlib.suppress(FileExistsError):
            os.mkdir(steps[depth], 0o755, dir_fd=above)


@contextlib.contextmanager
def parent_of(pid: int, path: str) -> Iterator[tuple[int, str]]:
    """A handle of the node's folder, and the node's name in it.

    :raises FileNotFoundError: the container has no such folder
    """
    *steps, name = path.strip("/").split("/")
    folder = open_folder(pid, tuple(steps))
    if folder is None:
        raise FileNotFoundError(2, "its folder is missing", path)
    with closing(folder):
        yield folder, name


def is_node(status: os.stat_result, number: Number) -> bool:
    return stat.S_ISCHR(status.st_mode) and (os.major(status.st_rdev), os.minor(status.st_rdev)) == tuple(number)
