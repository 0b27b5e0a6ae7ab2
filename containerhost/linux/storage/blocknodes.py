# SPDX-License-Identifier: Apache-2.0
"""Find the users of a container's block device nodes, and fence a node before its removal.

Engines remove a node from /dev, but a bind mount of it elsewhere keeps it, and with it the device. Without
permissions and with an owner unknown to the container, the node cannot be opened there, wherever it is mounted.
"""

import contextlib
import os
import stat
from collections.abc import Iterator

from containerhost.errors import HostActionFailed
from containerhost.linux import daemonnodes
from containerhost.linux.files import closing
from containerhost.linux.process import openfiles
from containerhost.linux.process.processes import name

Number = tuple[int, int]
Inode = tuple[str, str]  # format of device and inode in /proc/<pid>/maps


class NodeMissing(HostActionFailed):
    """Signal that the daemon has no such node for the container."""


def fence(server: int, container: str, device: str, number: Number) -> None:
    """Block opening of the node for all processes in the container.

    :param server: the daemon's process
    :param container: the daemon's name for its directory
    :param device: the daemon's name for it
    :param number: required major and minor of the device
    :raises NodeMissing:
    """
    with opened(server, container, device, number) as fd:
        place = f"/proc/self/fd/{fd}"
        os.chown(place, 0, 0)  # before the mode, which the owner may change
        os.chmod(place, 0)


def restore(server: int, container: str, pid: int, device: str, number: Number, mode: int) -> None:
    """Restore a fenced node for the container's root, unless the daemon has removed it."""
    with contextlib.suppress(NodeMissing), opened(server, container, device, number) as fd:
        place = f"/proc/self/fd/{fd}"
        os.chown(place, root_of(pid, "uid_map"), root_of(pid, "gid_map"))
        os.chmod(place, mode & 0o777)


def inode(server: int, container: str, device: str, number: Number) -> Inode:
    """Return the device and inode of the node itself.

    :raises NodeMissing:
    """
    with opened(server, container, device, number) as fd:
        status = os.fstat(fd)
    return f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}", str(status.st_ino)


def use(pid: int, node: Inode, number: Number) -> str | None:
    """Describe how a process uses the device: it has it open or mapped, or sees a mount of it."""
    if number in openfiles.nodes(pid, stat.S_IFBLK) or node in openfiles.mapped(pid):
        return f"process {pid} ({name(pid)})"
    if f"{number[0]}:{number[1]}" in openfiles.mounted(pid):
        return f"a mount that process {pid} ({name(pid)}) sees"
    return None


@contextlib.contextmanager
def opened(server: int, container: str, device: str, number: Number) -> Iterator[int]:
    """Open the daemon's node itself, not the device behind it.

    The container may have another node at its path, even one of the same device: a removed one that is bind-mounted
    there again."""
    with daemonnodes.opened(server, container) as directory:
        file = next((file for file in (directory.names() if directory else ()) if file.startswith(daemonnodes.KIND)
                     and daemonnodes.parted(file)[0] == device), None)
        if directory is None or file is None:
            there = "no directory" if directory is None else ", ".join(sorted(directory.names())) or "nothing"
            raise NodeMissing(f"the daemon has no node of device {device} of container {container} in its directory "
                              f"(there is {there}), so none can be fenced: stop the container, then try again")
        with closing(os.open(file, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory.fd)) as fd:
            status = os.fstat(fd)
            if not stat.S_ISBLK(status.st_mode) or number != (os.major(status.st_rdev), os.minor(status.st_rdev)):
                raise NodeMissing(f"{directory.path / file} is not block device {number[0]}:{number[1]}")
            yield fd


def root_of(pid: int, file: str) -> int:
    """Return the host id of the container's root, from lines of ``inside outside count``."""
    maps = [tuple(map(int, line.split())) for line in openfiles.lines(pid, file)]
    return next((outside for inside, outside, _ in maps if inside == 0), 0)
