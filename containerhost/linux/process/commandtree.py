# SPDX-License-Identifier: Apache-2.0
"""Kill all processes that a command in a container started: an engine may know only the first.

A process belongs to it by the first one's session, a mark in the environment, or a parent that belongs to it, ended
or not. A program that hides from all three is treated as the container's; a tenant may run such anyway.
"""

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from containerhost.errors import HostActionFailed
from containerhost.linux.files import closing
from containerhost.linux.poll import wait_while
from containerhost.linux.process.processes import ProcReadTimeout, alone, namespace, read_with_timeout, stat

MARK = "CONTAINERHOST_COMMAND"  # the environment variable whose value is the mark
TIMEOUT = 5.0  # s until they are gone
STARTING = 0.02  # s that the kernel takes to start a program
GONE = frozenset("ZX")  # states of processes that have ended (proc(5))


class Place(NamedTuple):
    parent: int
    session: int


def end(container: int, first: int, mark: str) -> None:
    """Kill them all, including those that they start meanwhile.

    :param container: a process of the container, as the host numbers it
    :param first: the command's first process; 0 if unknown
    :raises HostActionFailed: a process does not end
    """
    space = namespace(container)
    if space is None:
        return  # the container has ended

    def killed() -> frozenset[int]:
        found = members(places(space, container), first, mark)
        for pid in found:
            kill(pid, space)
        return found

    if found := wait_while(killed, TIMEOUT):
        raise HostActionFailed(f"process {min(found)} of a command does not end within {TIMEOUT:g} s")


def members(known: Mapping[int, Place], first: int, mark: str) -> frozenset[int]:
    variable = f"{MARK}={mark}".encode()
    found = {pid for pid, place in known.items()
             if pid == first or place.session == first != 0 or variable in environment(pid)}
    while below := {pid for pid, place in known.items() if place.parent in found} - found:
        found |= below
    return frozenset(found)


def places(space: str, container: int) -> dict[int, Place]:
    """Return the parents and sessions of the running processes in a container's PID namespace.

    :param container: a process of the container
    """
    found = {pid: place(pid) for pid in alone(space, container)}
    return {pid: there for pid, there in found.items() if there}


def place(pid: int) -> Place | None:
    """Return the parent and session of a process; None if it has ended, or cannot be inspected."""
    try:
        state, parent, _, session, *_ = stat(pid)
    except (ProcReadTimeout, ValueError):
        return None
    return None if state in GONE else Place(int(parent), int(session))


def environment(pid: int) -> frozenset[bytes]:
    """Return a process's initial environment; an empty one is read again, because execve(2) hides it briefly."""
    file = Path(f"/proc/{pid}/environ")
    try:
        found = read_with_timeout(pid, file.read_bytes)
        if not found:
            time.sleep(STARTING)
            found = read_with_timeout(pid, file.read_bytes)
    except (OSError, ProcReadTimeout):
        return frozenset()
    return frozenset(found.split(b"\0"))


def kill(pid: int, space: str) -> None:
    """Kill a process; if its pid was reused, then only by a process of the same container."""
    with contextlib.suppress(ProcessLookupError), closing(os.pidfd_open(pid)) as fd:
        if namespace(pid) == space:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
