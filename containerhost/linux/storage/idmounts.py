# SPDX-License-Identifier: Apache-2.0
"""Mount file systems of files and block devices on the host, with owners from a container's user id range.

An engine can give a container a directory of the host; here that directory is the root of such a mount. A process
killed before the mount is attached leaves nothing, and an attached mount is found by its target.
"""

import contextlib
import dataclasses
import errno
import os
import socket
import stat
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from containerhost.errors import DeviceInUse, HostActionFailed
from containerhost.linux import mountapi
from containerhost.linux.files import closing
from containerhost.linux.poll import wait_while
from containerhost.linux.run import start
from containerhost.linux.storage import loops

RELEASE_TIMEOUT = 10.0  # s; the kernel shuts a file system down shortly after its last unmount
START_TIMEOUT = 10.0  # s for a process to start
# The superblock may request a kernel panic on errors; a tenant's must not.
OPTIONS: Mapping[str, Mapping[str, str | None]] = {
    "ext4": {"errors": "remount-ro"},
    "xfs": {"nouuid": None},  # clones of one image have one UUID
}


@dataclasses.dataclass(frozen=True)
class IdRange:
    """Map ``count`` ids from ``inside`` in a container to ``outside`` on the host."""

    inside: int
    outside: int
    count: int


@dataclasses.dataclass(frozen=True)
class IdMap:
    uids: tuple[IdRange, ...]
    gids: tuple[IdRange, ...]

    @property
    def root(self) -> tuple[int, int]:
        """Return the host's user and group ids of the container's root."""
        uid, gid = (next(part.outside for part in ranges if part.inside == 0) for ranges in (self.uids, self.gids))
        return uid, gid


@dataclasses.dataclass(frozen=True)
class FileSystem:
    """Locate a file system to mount: in a file or block device, or in a part of it.

    :ivar kind: as the kernel names it
    :ivar start, size: bytes; the part of ``source`` with the file system
    """

    source: Path
    kind: str
    start: int
    size: int
    read_only: bool = False


def mount(wanted: FileSystem, target: Path, ids: IdMap | None) -> None:
    """Mount a file system at the directory ``target``, unless something is already mounted there.

    :param ids: the container's; None where its users are the host's
    :raises HostActionFailed: with the kernel's message
    """
    if os.path.ismount(target):
        return
    attributes = mountapi.NOSUID | mountapi.NODEV | (mountapi.RDONLY if wanted.read_only else 0)
    options = {**OPTIONS.get(wanted.kind, {}), **({"ro": None} if wanted.read_only else {})}
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(block_node(wanted))
        tree = stack.enter_context(closing(mountapi.mounted(wanted.kind, node, options, attributes)))
        if ids:
            mountapi.shift(tree, stack.enter_context(user_namespace(ids)))
        mountapi.place(tree, str(target))


def unmount(target: Path) -> None:
    """Unmount a file system, and wait until its file or device has no writers. Idempotent.

    :raises DeviceInUse: a process of a container keeps it, for instance in its own mount namespace; it is no longer
        mounted at ``target``
    """
    if not os.path.ismount(target):
        return
    node = device_of(target)
    # The kernel frees an autoclear loop device; an administrator's stays.
    backing = loops.attribute(node, "backing_file") if loops.attribute(node, "autoclear") == "1" else None
    mountapi.unmount(str(target))
    await_release(node, backing)


def require_unused(file: Path) -> None:
    """Refuse a file that is in use. Its file system must not be mounted on the host.

    :raises DeviceInUse: a process of a container keeps it
    """
    node = loops.existing(file)
    if node is not None:
        await_release(node, str(file.resolve()))


def await_release(node: str, backing: str | None) -> None:
    """Wait until nothing uses a device.

    :param backing: the file behind it, if it is a loop device
    :raises DeviceInUse: it is still in use
    """
    if wait_while(lambda: in_use(node, backing), RELEASE_TIMEOUT):
        raise DeviceInUse(f"{backing or node} is still in use, though it is unmounted: a process in the "
                          "container uses it, for example by its own mount namespace")


def in_use(node: str, backing: str | None) -> bool:
    """Return whether anything uses a device.

    :param backing: the file behind it, if it is a loop device
    """
    if backing is not None:
        return loops.attribute(node, "backing_file") == backing
    try:
        os.close(os.open(node, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC))
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise HostActionFailed(f"{node} cannot be read: {error.strerror}") from error
        return True
    return False


def device_of(target: Path) -> str:
    """Return the node of the block device that is mounted at ``target``."""
    number = target.stat().st_dev
    name = os.path.basename(os.path.realpath(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}"))
    return f"/dev/{name}"


@contextlib.contextmanager
def block_node(wanted: FileSystem) -> Iterator[str]:
    whole = stat.S_ISBLK(wanted.source.stat().st_mode) and wanted.start == 0
    if whole:
        yield str(wanted.source)
        return
    with loops.over(wanted.source, wanted.start, wanted.size, read_only=wanted.read_only) as node:
        yield node


@contextlib.contextmanager
def user_namespace(ids: IdMap) -> Iterator[int]:
    """Yield a descriptor of a user namespace with these ids, kept by a process that ends with the block."""
    ours, keepers = socket.socketpair()
    with contextlib.ExitStack() as stack:
        stack.enter_context(ours)
        with keepers:
            keeper = _keeper(keepers)
        stack.callback(keeper.wait)
        stack.callback(keeper.kill)  # always: it waits for input as long as our end is open
        ours.settimeout(START_TIMEOUT)
        ours.sendall(b"\n")
        if ours.recv(1) != b"\n":
            raise HostActionFailed("no user namespace can be created; see the limit user.max_user_namespaces")
        for name, ranges in (("uid_map", ids.uids), ("gid_map", ids.gids)):
            lines = "".join(f"{part.inside} {part.outside} {part.count}\n" for part in ranges)
            try:
                Path(f"/proc/{keeper.pid}/{name}").write_text(lines, encoding="ascii")
            except OSError as error:
                raise HostActionFailed(f"the kernel refuses the {name} {lines.strip()!r}: {error.strerror}") from error
        yield stack.enter_context(closing(os.open(f"/proc/{keeper.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)))


def _keeper(end: socket.socket) -> "subprocess.Popen[bytes]":
    """Start a process in a new user namespace that echoes its input."""
    return start(["unshare", "--user", "--", "cat"], "no user namespace can be made", stdin=end.fileno(),
                 stdout=end.fileno())
