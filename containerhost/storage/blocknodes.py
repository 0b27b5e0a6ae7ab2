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
from containerhost.linux.files import closing
from containerhost.process import openfiles
from containerhost.process.processes import name, open_directory

Number = tuple[int, int]
Inode = tuple[str, str]  # as /proc/<pid>/maps writes device and inode


class NodeMissing(HostActionFailed):
    """The container has hidden the node, or it is another one."""


def fence(pid: int, path: str, number: Number) -> None:
    """Let nobody in the container open the node any more.

    :param pid: the container's first process
    :param path: of the node in the container
    :param number: major and minor of the device it must be
    :raises NodeMissing:
    """
    with opened(pid, path, number) as fd:
        place = f"/proc/self/fd/{fd}"
        os.chown(place, 0, 0)  # first: its owner may change its mode
        os.chmod(place, 0)


def restore(pid: int, path: str, number: Number, mode: int) -> None:
    """Give a fenced node back to the container's root; nothing when it has been taken away."""
    with contextlib.suppress(NodeMissing), opened(pid, path, number) as fd:
        place = f"/proc/self/fd/{fd}"
        os.chown(place, root_of(pid, "uid_map"), root_of(pid, "gid_map"))
        os.chmod(place, mode & 0o777)


def inode(pid: int, path: str, number: Number) -> Inode:
    """Return the node's own device and inode.

    :raises NodeMissing:
    """
    with opened(pid, path, number) as fd:
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
def opened(pid: int, path: str, number: Number) -> Iterator[int]:
    """Open the node itself, not the device behind it. Every component of the path is the tenant's, so no link is
    followed."""
    *steps, last = path.strip("/").split("/")
    directory = open_directory(pid, tuple(steps))
    try:
        if directory is None:
            raise FileNotFoundError
        fd = os.open(last, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        raise NodeMissing(f"process {pid} sees no {path}: its container has hidden it; stop the container, then try "
                          "again") from error
    finally:
        if directory is not None:
            os.close(directory)
    with closing(fd):
        status = os.fstat(fd)
        if not stat.S_ISBLK(status.st_mode) or (os.major(status.st_rdev), os.minor(status.st_rdev)) != tuple(number):
            raise NodeMissing(f"what process {pid} sees as {path} is not block device {number[0]}:{number[1]}")
        if status.st_dev == os.stat("/dev").st_dev:  # to give it away would be to give the host's disk to a user
            raise HostActionFailed(f"what process {pid} sees as {path} is the host's own node, not one of a container")
        yield fd


def root_of(pid: int, file: str) -> int:
    """Return the host's number of the container's root, from lines of ``inside outside count``."""
    maps = [tuple(map(int, line.split())) for line in openfiles.lines(pid, file)]
    return next((outside for inside, outside, _ in maps if inside == 0), 0)
