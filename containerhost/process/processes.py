# SPDX-License-Identifier: Apache-2.0
"""Read the host's processes, and enter the root directory of a tenant's process safely."""

import os
from collections.abc import Iterator

from containerhost.errors import HostActionFailed
from containerhost.linux.files import closing

# Processes come and go while they are looked at: one that is gone has nothing open.


def pids() -> Iterator[int]:
    return (int(entry) for entry in os.listdir("/proc") if entry.isdecimal())


def namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


def parent(pid: int) -> int | None:
    """Return the parent of a process; None for the first process, and for one that is gone."""
    fields = _fields(pid)
    return int(fields[1]) or None if fields else None


def began(pid: int) -> int | None:
    """Return the start time of a process, in clock ticks since boot: with its number it identifies one process for
    ever. None for one that is gone, also if nobody has waited for it."""
    fields = _fields(pid)
    return int(fields[19]) if fields and fields[0] not in ("Z", "X") else None


def _fields(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat (proc(5)) from the third on; none of one that is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The second field is the program's name in parentheses, which may hold anything.
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def members(home: str) -> Iterator[int]:
    """Yield the processes in a PID namespace or below it: a process that entered one from outside has a parent
    elsewhere, and one of a container within the container has a namespace of its own."""
    return (process for process in pids() if belongs(process, home))


def outermost(pid: int) -> str | None:
    """Return the PID namespace of the container that a process belongs to, also in a container within it. None for a
    process of the host's own, and for one that is gone."""
    outside, found, ancestor = namespace(os.getpid()), None, int(pid)
    while ancestor and (space := namespace(ancestor)) not in (outside, None):
        found, ancestor = space, parent(ancestor) or 0
    return found


def belongs(pid: int, home: str) -> bool:
    """Return whether a process is in a PID namespace, or in one below it."""
    outside, space, ancestor = namespace(os.getpid()), namespace(pid), parent(pid)
    while space not in (home, outside) and ancestor:
        space, ancestor = namespace(ancestor), parent(ancestor)
    return space == home


def table(pid: int, file: str) -> list[str]:
    """Return the lines of a table of a process in /proc. Only a line feed ends one: a tenant chooses some of what
    stands in them.

    :raises OSError: it cannot be read
    """
    with open(f"/proc/{pid}/{file}", encoding="utf-8", errors="replace", newline="\n") as lines:
        return [line.removesuffix("\n") for line in lines]


def real_user(pid: int) -> int | None:
    """Return the user of a process; None of one that is gone. The owner of its directory in /proc is root for
    everybody's process that may not be dumped (proc(5)), which any process can choose."""
    try:
        return next((int(line.split()[1]) for line in table(pid, "status") if line.startswith("Uid:")), None)
    except OSError:
        return None


def name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "gone meanwhile"


# A container's root belongs to its tenant: each step below it is opened by itself and no link is ever followed,
# because an absolute link would lead into the host's own root.

STEP = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_directory(pid: int, steps: tuple[str, ...]) -> int | None:
    """Open a directory below the root of a process; None when it is missing or not a directory."""
    try:
        fd = os.open(f"/proc/{pid}/root", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise HostActionFailed(f"cannot look into process {pid}: {error.strerror}") from error
    for step in steps:
        try:
            with closing(fd):
                fd = os.open(step, STEP, dir_fd=fd)
        except OSError:
            return None
    return fd
