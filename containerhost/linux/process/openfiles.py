# SPDX-License-Identifier: Apache-2.0
"""Find device nodes that any thread of a process has open or mapped, or whose mounts it sees.

Each thread can have its own table of open files and mount namespace (unshare(2)), and if the first thread has ended,
there is nothing at the process's pid. /proc accepts a thread id in place of a pid.
"""

import ctypes
import errno
import itertools
import math
import os
import re
import stat
import struct
import time
from collections.abc import Iterator

from containerhost.errors import HostActionFailed
from containerhost.linux.process.processes import GONE, table, threads

Number = tuple[int, int]

KCMP_FILES = 2  # linux/kcmp.h
# By the names of uname(2); where it has no number here, or the kernel none, every thread is looked at.
KCMP = {"x86_64": 312, "aarch64": 272, "ppc64le": 354, "s390x": 343}.get(os.uname().machine)

# statx(2), linux/stat.h: mode and the numbers of a node, at bytes 28, 128 and 132.
STATX = struct.Struct("=28xH98xII120x")
STATX_SIZE, STATX_TYPE = STATX.size, 0x1
AT_FDCWD, AT_STATX_DONT_SYNC = -100, 0x4000

# recvmsg(2), recvmmsg(2) and socketcall(2), by the names of uname(2), and what programs of 32 bits call them by; 417 is
# their recvmmsg_time64 everywhere.
RECEIVING = {"x86_64": {47, 299, 337, 372, 102, 417, 0x40000000 + 519, 0x40000000 + 537},
             "aarch64": {212, 243, 297, 365, 417}, "ppc64le": {342, 343, 102, 417},
             "s390x": {372, 357, 102, 417}}.get(os.uname().machine)

UNLISTED = re.compile(r"(scm_fds|UserFiles):\s*[1-9]")

_libc = ctypes.CDLL(None, use_errno=True)


def tables(pid: int) -> Iterator[int]:
    """Yield threads of a process that together have all its open files: one for each table."""
    found: list[int] = []
    for thread in threads(pid):
        # Each with the first and the last alone: a process may have thousands of tables.
        if not any(shared(thread, other) for other in {*found[:1], *found[-1:]}):
            found.append(thread)
            yield thread


def shared(one: int, other: int) -> bool:
    """Return whether two threads certainly share one table of open files."""
    return KCMP is not None and _libc.syscall(KCMP, one, other, KCMP_FILES, 0, 0) == 0


def nodes(pid: int, kind: int, end: float = math.inf, *, opened: bool = False) -> set[Number]:
    """Return the numbers of the nodes that a process has open, or has mapped and closed.

    :param kind: ``stat.S_IFCHR`` or ``stat.S_IFBLK``
    :param end: when to give up, on the monotonic clock
    :param opened: only open ones. A reader of the maps of a running process may have to release its memory, and wait
        forever for its FUSE files
    :raises TimeoutError: the process has too many files
    """
    found: set[Number] = set()
    for path in fds(pid) if opened else itertools.chain(fds(pid), mappings(pid)):
        if time.monotonic() > end:
            raise TimeoutError(f"process {pid} has too many files open")
        found |= node(path, kind)
    return found


def node(path: str, kind: int) -> set[Number]:
    """Return the number of a node; None if it is not of this kind, or is gone.

    Unlike os.stat(), this queries no file system: a process of the container that serves one (FUSE) may be frozen."""
    status = ctypes.create_string_buffer(STATX_SIZE)
    if _libc.statx(AT_FDCWD, os.fsencode(path), AT_STATX_DONT_SYNC, STATX_TYPE, status) < 0:
        return set()  # the process has ended, or closed it
    mode, major, minor = STATX.unpack(status.raw)
    return {(major, minor)} if stat.S_IFMT(mode) == kind else set()


def fds(pid: int) -> Iterator[str]:
    for thread in tables(pid):
        try:
            with os.scandir(f"/proc/{thread}/fd") as entries:
                yield from (entry.path for entry in entries)
        except GONE:
            continue


def unlisted(pid: int) -> str | None:
    """Describe how a process may hold a device that no table lists; None if it cannot.

    Files wait in a socket to be received, or are kept in an io_uring; the kernel does not report which ones. See
    unix(7), SCM_RIGHTS, and io_uring_register(2).
    """
    for path in fds(pid):
        thread, _, fd = path.removeprefix("/proc/").partition("/fd/")
        try:
            target = os.readlink(path)
        except OSError:  # it has ended, or closed it
            continue
        if (target.startswith(("socket:", "anon_inode:[io_uring]"))
                and any(map(UNLISTED.match, lines(int(thread), f"fdinfo/{fd}")))):
            return "by a file descriptor that waits in a socket or is kept in an io_uring"
    return None


def receives(pid: int) -> str | None:
    """Describe a thread's wait in the kernel for a message with files; None if there is none.

    It keeps the socket of the call, which is in no table if another thread has closed it, with the files waiting
    there.

    Source: proc(5), /proc/pid/syscall. On a machine whose numbers are not known, every call counts.

    :raises HostActionFailed: Yama forbids reading that
    """
    for thread in threads(pid):
        try:
            number = next(iter(lines(thread, "syscall")), "-1").split()[0]
        except PermissionError as error:
            raise HostActionFailed(f"cannot tell whether process {pid} receives files: /proc/{pid}/syscall cannot be "
                                   "read. Set kernel.yama.ptrace_scope below 3 (sysctl; from 3 on, by a restart), or "
                                   "use cgroup v2") from error
        if number not in ("-1", "running") and (RECEIVING is None or int(number) in RECEIVING):
            return "by a socket that it may have closed, and waits to receive from (recvmsg)"
    return None


def mappings(pid: int) -> Iterator[str]:
    """Return the paths in map_files of each file that the process has mapped.

    A tenant can give a node any path, and its inode's number to a file of another subvolume (btrfs), so each mapping
    counts.

    Lines of /proc/<pid>/maps: ``00020000-00021000 rw-s 00000000 00:06 1034 /dev/dri/card0``. The names in map_files
    have no leading zeros.
    """
    thread, found = memory(pid)
    places = (fields[0].split("-") for fields in map(str.split, found) if fields[4] != "0")
    return (f"/proc/{thread}/map_files/{int(start, 16):x}-{int(end, 16):x}" for start, end in places)


def mapped(pid: int) -> set[tuple[str, str]]:
    """Return device and inode of each file in a process's memory, in the format of /proc/<pid>/maps."""
    return {(fields[3], fields[4]) for fields in map(str.split, memory(pid)[1]) if fields[4] != "0"}


def memory(pid: int) -> tuple[int, list[str]]:
    """Return a running thread and the lines of its maps: all threads share one memory, ended ones show none."""
    return next(((thread, found) for thread in threads(pid) if (found := lines(thread, "maps"))), (pid, []))


def mounted(pid: int) -> set[str]:
    """Return the numbers (``8:1``) of the devices whose file systems a process sees."""
    seen: set[str] = set()
    found: set[str] = set()
    for thread in threads(pid):
        try:
            space = os.readlink(f"/proc/{thread}/ns/mnt")
        except OSError:
            continue
        if space not in seen:
            seen.add(space)
            found.update(line.split()[2] for line in lines(thread, "mountinfo"))
    return found


def lines(pid: int, file: str) -> list[str]:
    """Return the lines of a file of a process in /proc; none if it has ended.

    :raises OSError: it cannot be read though the process runs
    """
    try:
        return table(pid, file)
    except OSError as error:
        if isinstance(error, GONE) or error.errno == errno.EINVAL:  # of a thread that nobody has waited for
            return []
        raise
