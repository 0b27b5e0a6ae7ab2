# SPDX-License-Identifier: Apache-2.0
"""Add and remove character nodes of a running container: in its control group and in its /dev.

Access is controlled by the control group: by a file in version 1 (Documentation/admin-guide/cgroup-v1/devices.rst),
by a program in version 2. The node only makes the device reachable by its name. So a removed device is denied first:
other nodes of it in the container cannot be opened either.

The /dev of a container with its own user namespace belongs to that namespace, where new nodes do not work: such
a container gets a node of the host, mounted over a file.
"""

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from containerhost.errors import HostActionFailed
from containerhost.linux import controlgroups, devicefilter, mountapi
from containerhost.linux.files import closing
from containerhost.linux.process import childprocess, namespaces
from containerhost.linux.process.processes import namespace, open_directory

Number = tuple[int, int]

CGROUPS = "/sys/fs/cgroup"
#: LXC's group of a container, and what an init of the container's own made below.
PAYLOAD = re.compile(r"(/lxc\.payload\.[^/]*)/.*")


def give(pid: int, path: str, number: Number, mode: int) -> None:
    """Create a character node in a container and permit it.

    :param pid: the container's first process
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
    """Remove a character node from a container and deny it. Idempotent."""
    require_container(pid)
    permit(pid, number, False)
    remove_from(pid, path, number)


def remove_from(pid: int, path: str, number: Number) -> None:
    """Remove a character node from a container's /dev. Idempotent."""
    require_container(pid)
    childprocess.run(pid, lambda: remove(pid, path, number), f"cannot take {path} from process {pid}")


def require_container(pid: int) -> None:
    """Refuse a pid that does not belong to a container: the host may reuse a pid after its container has ended."""
    if namespace(pid) in (None, namespace(os.getpid())):
        raise HostActionFailed(f"process {pid} is not that of a running container")


def permit(pid: int, number: Number, allowed: bool) -> None:
    """Permit or deny a device to the processes of the container."""
    found = groups(pid)
    if os.path.exists(f"{CGROUPS}/cgroup.controllers"):  # cgroup v2 only, detected like the engines do
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
    """Return the process's control groups by controller; that of version 2 has an empty name (cgroups(7))."""
    try:
        return controlgroups.parse(Path(f"/proc/{pid}/cgroup").read_bytes())
    except OSError as error:
        raise HostActionFailed(f"cannot inspect process {pid}: {error.strerror}") from error


def filtered(directory: str) -> str:
    """Return the nearest group with a device program, from this one up: an init may create nested groups."""
    above = directory
    while above.startswith(f"{CGROUPS}/"):
        if devicefilter.decided(above):
            return above
        above = os.path.dirname(above)
    raise HostActionFailed(f"no device program is attached to control group {directory} or one above it, so no "
                           "device can be added or taken away")


def make(pid: int, path: str, number: Number, mode: int) -> None:
    """Create a character node in a container.

    :raises HostActionFailed, OSError: something else is there already, or the kernel refuses
    """
    problem = f"cannot make {path} for process {pid}"
    if has_own_users(pid):
        with host_node(number, mode) as mount:
            childprocess.run(pid, lambda: show(pid, path, number, mount), problem, keep=(mount,))
        return
    childprocess.run(pid, lambda: create(pid, path, number, mode), problem)


def create(pid: int, path: str, number: Number, mode: int) -> None:
    """Create a node that belongs to the container.

    :raises HostActionFailed, OSError: something else is there already, or the kernel refuses
    """
    make_directory(pid, path)
    with parent_of(pid, path) as (directory, name):
        if not is_there(pid, path, directory, name, number):
            os.mknod(name, stat.S_IFCHR | mode, os.makedev(*number), dir_fd=directory)
        set_mode(directory, name, number, mode)


def is_there(pid: int, path: str, directory: int, name: str, number: Number, *, unfinished: bool = False) -> bool:
    """Return whether the node exists.

    :param unfinished: an empty file counts as missing, because a killed call leaves one
    :raises HostActionFailed: something else is there
    """
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    if unfinished and stat.S_ISREG(status.st_mode) and status.st_size == 0:
        return False
    if not is_node(status, number):
        raise HostActionFailed(f"process {pid} has something else at {path}: remove it in the container, then try "
                               "again")
    return True


def set_mode(directory: int, name: str, number: Number, mode: int) -> None:
    """Set a node's mode regardless of the umask, without following a link that the tenant put in its place."""
    with closing(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)) as fd:
        if is_node(os.fstat(fd), number):
            os.chmod(f"/proc/self/fd/{fd}", mode)


# Containers with a user namespace.


def has_own_users(pid: int) -> bool:
    return os.readlink(f"/proc/{pid}/ns/user") != os.readlink("/proc/self/ns/user")


def show(pid: int, path: str, number: Number, mount: int) -> None:
    """Create a node in a container's mount namespace, in which the process stays.

    This runs as the container's root, because the kernel permits only that user to create files in its directories."""
    namespaces.make_files_as(*root_of(pid))
    make_directory(pid, path)
    with parent_of(pid, path) as (directory, name):
        if is_there(pid, path, directory, name, number, unfinished=True):
            return
        with contextlib.suppress(FileExistsError):
            os.mknod(name, stat.S_IFREG | 0o600, dir_fd=directory)  # the mount point; never opened, which could block
        namespaces.enter(f"/proc/{pid}/ns/mnt")
        try:
            mountapi.place(mount, name, directory)
        except HostActionFailed:
            os.unlink(name, dir_fd=directory)
            raise


def remove(pid: int, path: str, number: Number) -> None:
    """Remove a node if it exists."""
    with contextlib.suppress(FileNotFoundError), parent_of(pid, path) as (directory, name):
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if is_node(status, number):
            if status.st_dev != os.fstat(directory).st_dev:  # a bind mount of a node
                hide(pid, directory, name)
            else:
                os.unlink(name, dir_fd=directory)


def hide(pid: int, directory: int, name: str) -> None:
    """Remove a node in a container's mount namespace, in which the process stays."""
    namespaces.make_files_as(*root_of(pid))
    namespaces.enter(f"/proc/{pid}/ns/mnt")
    os.fchdir(directory)
    mountapi.unmount(name, lazily=True)
    os.unlink(name)


@contextlib.contextmanager
def host_node(number: Number, mode: int) -> Iterator[int]:
    """Yield a descriptor of a private mount of the node, without the permissions of the host's own node.

    Only this process can reach it. It must stay open until it is mounted elsewhere."""
    import tempfile  # noqa: PLC0415  (a start of a container on Docker may load this module, and people wait)
    with tempfile.TemporaryDirectory(prefix=".containerhost-", dir="/dev") as directory:
        path = os.path.join(directory, "node")
        os.mknod(path, stat.S_IFCHR, os.makedev(*number))
        os.chmod(path, mode)
        with closing(mountapi.shown_again(path)) as mount:
            yield mount


def root_of(pid: int) -> tuple[int, int]:
    """Return the host's user and group ids of the container's root."""
    user, group = (mapped_root(f"/proc/{pid}/{name}") for name in ("uid_map", "gid_map"))
    return user, group


def mapped_root(path: str) -> int:
    """Return the host id of the container's root from lines of user_namespaces(7): id inside, outside, count."""
    with open(path, encoding="ascii") as table:
        for inside, outside, _ in (map(int, line.split()) for line in table):
            if inside == 0:
                return outside
    raise HostActionFailed(f"{path} has no root")


# Paths.


def make_directory(pid: int, path: str) -> None:
    steps = tuple(path.strip("/").split("/")[:-1])
    for depth in range(1, len(steps)):
        above = open_directory(pid, steps[:depth])
        if above is None:
            raise HostActionFailed(f"process {pid} sees no directory /{'/'.join(steps[:depth])}")
        with closing(above), contextlib.suppress(FileExistsError):
            os.mkdir(steps[depth], 0o755, dir_fd=above)


@contextlib.contextmanager
def parent_of(pid: int, path: str) -> Iterator[tuple[int, str]]:
    """Yield a descriptor of the node's directory, and the node's name in it.

    :raises FileNotFoundError: the container has no such directory
    """
    *steps, name = path.strip("/").split("/")
    directory = open_directory(pid, tuple(steps))
    if directory is None:
        raise FileNotFoundError(2, "its directory is missing", path)
    with closing(directory):
        yield directory, name


def is_node(status: os.stat_result, number: Number) -> bool:
    return stat.S_ISCHR(status.st_mode) and (os.major(status.st_rdev), os.minor(status.st_rdev)) == tuple(number)
