# SPDX-License-Identifier: Apache-2.0
"""Find the users of a container's block device nodes, and take one out of use before it is taken away.

Engines take a node out of /dev, but who bound it to another place before keeps it, and with it the device. Without
mode and without an owner that the container knows, the node opens for nobody in it, wherever it is bound to.
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
Inode = tuple[str, str]  # as /proc/<pid>/maps writes device and inode


class NodeMissing(HostActionFailed):
    """Signal that the daemon has no such node for the container."""


def fence(server: int, container: str, device: str, number: Number) -> None:
    """Let nobody in the container open the node any more.

    :param server: the daemon's process
    :param container: as the daemon calls its directory
    :param device: as the daemon calls it
    :param number: major and minor of the device it must be
    :raises NodeMissing:
    """
    with opened(server, container, device, number) as fd:
        place = f"/proc/self/fd/{fd}"
        os.chown(place, 0, 0)  # first: its owner may change its mode
        os.chmod(place, 0)


def restore(server: int, container: str, pid: int, device: str, number: Number, mode: int) -> None:
    """Give a fenced node back to the container's root; nothing when the daemon has taken it away.

    :param pid: the container's first process
    """
    with contextlib.suppress(NodeMissing), opened(server, container, device, number) as fd:
        place = f"/proc/self/fd/{fd}"
        os.chown(place, root_of(pid, "uid_map"), root_of(pid, "gid_map"))
        os.chmod(place, mode & 0o777)


def inode(server: int, container: str, device: str, number: Number) -> Inode:
    """Return the node's own device and inode.

    :raises NodeMissing:
    """
    with opened(server, container, device, number) as fd:
        status = os.fstat(fd)
    return f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}", str(status.st_ino)


def use(pid: int, node: Inode, number: Number) -> str | None:
    """Return how a process uses the device, in words: it has it open or mapped, or sees a mount of it."""
    if number in openfiles.nodes(pid, stat.S_IFBLK) or node in openfiles.mapped(pid):
        return f"process {pid} ({name(pid)})"
    if f"{number[0]}:{number[1]}" in openfiles.mounted(pid):
        return f"a mount that process {pid} ({name(pid)}) sees"
    return None


@contextlib.contextmanager
def opened(server: int, container: str, device: str, number: Number) -> Iterator[int]:
    """Open the daemon's node itself, not the device behind it.

    What the container shows at its path may be another one, also of the same device: one that was taken away and is
    bound there again."""
    with daemonnodes.opened(server, container) as directory:
        file = next((file for file in (directory.names() if directory else ()) if file.startswith(daemonnodes.KIND)
                     and daemonnodes.parted(file)[0] == device), None)
        if directory is None or file is None:
            there = "no directory" if directory is None else ", ".join(sorted(directory.names())) or "nothing"
            raise NodeMissing(f"the daemon has no node of device {device} of container {container} where it keeps them "
                              f"(there is {there}), so none can be made unusable: stop the container, then try again")
        with closing(os.open(file, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory.fd)) as fd:
            status = os.fstat(fd)
            if not stat.S_ISBLK(status.st_mode) or number != (os.major(status.st_rdev), os.minor(status.st_rdev)):
                raise NodeMissing(f"{directory.path / file} is not block device {number[0]}:{number[1]}")
            yield fd


def root_of(pid: int, file: str) -> int:
    """Return the host's number of the container's root, from lines of ``inside outside count``."""
    maps = [tuple(map(int, line.split())) for line in openfiles.lines(pid, file)]
    return next((outside for inside, outside, _ in maps if inside == 0), 0)
