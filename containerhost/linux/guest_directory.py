# SPDX-License-Identifier: Apache-2.0
"""Read and write files in /run/containerhost of a running container, from the host, as root.

The tenant controls all of it: every component is opened separately without following a link, and only regular files
of limited size are opened. A file system may block on a tenant's process (FUSE, or an overlay of one) or on a
network, so only file systems that the kernel serves itself are accessed, and overlays mounted by the host, such as
Docker's root file systems, whose layers belong to the host. Files are created with the ids of the container's root:
no other user may create files there.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from containerhost.errors import HostActionFailed
from containerhost.linux.charnodes import require_container, root_of
from containerhost.linux.files import Directory, closing
from containerhost.linux.process import childprocess, namespaces
from containerhost.linux.sysfs import TABLE_LIMIT as HOST_TABLE_LIMIT

DIRECTORY = ("run", "containerhost")
FILE = re.compile(r"[a-z]{1,32}\.json")
LIMIT = 64 << 10  # bytes; the largest file
TABLE_LIMIT = 1 << 20  # bytes of a container's mount table; an ordinary one has some 10 KiB
LOCAL = frozenset({"tmpfs", "ramfs", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs"})
OVERLAY = "overlay"

Result = TypeVar("Result")


class _Mount(NamedTuple):
    """Identify a mount of a container and its file system, from a line of /proc/<pid>/mountinfo.

    :ivar device: number of the file system, unique among mounted ones
    """

    number: str
    device: str
    kind: str


def read(pid: int, name: str) -> bytes | None:
    """Read a file of the container.

    :param pid: the container's first process
    :returns: None if there is no such file
    :raises HostActionFailed: it is not a regular file, it is too large, or its file system is not accessed
    """
    try:
        return _within(pid, name, lambda directory: directory.read(name, LIMIT), create=False)
    except HostActionFailed as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def write(pid: int, name: str, content: bytes) -> None:
    """Create or replace a file, world-readable in the container, and its directory if it is missing.

    :raises HostActionFailed: as :func:`read`
    """
    _within(pid, name, lambda directory: directory.write(name, content, 0o644), create=True)


def _within(pid: int, name: str, act: Callable[[Directory], Result], *, create: bool) -> Result:
    if not FILE.fullmatch(name):
        raise HostActionFailed(f"{name!r} is not the name of a file that the host shares with a container")

    def run() -> Result:
        user, group = root_of(pid)
        with _opened_root(pid) as root:
            namespaces.make_files_as(user, group)
            with _directory(pid, root, create) as directory:
                return act(directory)

    return childprocess.run(pid, run, f"cannot use /{'/'.join(DIRECTORY)}/{name} of process {pid}")


@contextlib.contextmanager
def _opened_root(pid: int) -> Iterator[int]:
    with closing(os.open(f"/proc/{pid}/root", os.O_PATH | os.O_CLOEXEC)) as root:
        require_container(pid)
        yield root


@contextlib.contextmanager
def _directory(pid: int, root: int, create: bool) -> Iterator[Directory]:
    """Open the directory in the container.

    :raises OSError: FileNotFoundError, or NotADirectoryError for a link
    """
    with contextlib.ExitStack() as stack:
        fd, made, mount = root, False, _require_local(pid, root)
        for step in DIRECTORY:
            if create and step == DIRECTORY[-1]:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(step, 0o755, dir_fd=fd)
                    made = True
            # O_PATH does not access a file system that is mounted there.
            fd = os.open(step, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            stack.callback(os.close, fd)
            mount = _require_local(pid, fd, mount)
        directory = stack.enter_context(Directory(f"/proc/self/fd/{fd}"))
        if made:
            os.fchmod(directory.fd, 0o755)  # regardless of the umask
        yield directory


def _require_local(pid: int, fd: int, allowed: str = "") -> str:
    """Return the number of the mount that the file is on.

    :param allowed: a mount that was allowed before
    :raises HostActionFailed: its file system may block its callers
    """
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as table:
        number = next(line.split()[1] for line in table if line.startswith("mnt_id:"))
    if number == allowed:
        return number
    mount = next((mount for mount in _mounts(str(pid), TABLE_LIMIT) if mount.number == number), None)
    if mount is None or not (mount.kind in LOCAL or _is_hosts_overlay(mount)):
        raise HostActionFailed(f"/{'/'.join(DIRECTORY)} of process {pid} is on a file system of type "
                               f"{mount.kind if mount else 'unknown'}, which the host does not read")
    return number


def _is_hosts_overlay(mount: _Mount) -> bool:
    return mount.kind == OVERLAY and any(
        own.kind == OVERLAY and own.device == mount.device for own in _mounts("self", HOST_TABLE_LIMIT, mount.device))


def _mounts(process: str, limit: int, text: str = "") -> Iterator[_Mount]:
    """Yield the mounts of a process's namespace, up to ``limit`` bytes: a tenant may mount any number.

    :param text: is in their lines; the host may have a mount for each container
    Format (proc(5)): ``id parent major:minor root place options … - type …``. In names only space, tab, line feed and
    backslash are escaped."""
    with open(f"/proc/{process}/mountinfo", "rb") as table:
        lines = table.read(limit).split(b"\n")[:-1]  # the last line is empty, or truncated
    for fields in (line.split(b" ") for line in lines if text.encode() in line):
        kind = fields[fields.index(b"-", 6) + 1]
        yield _Mount(fields[0].decode(), fields[2].decode(), kind.decode("utf-8", "replace"))
