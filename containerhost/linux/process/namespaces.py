# SPDX-License-Identifier: Apache-2.0
"""Act in a container's namespace, or as its root, in a separate thread: the caller's never leaves its namespace."""

import ctypes
import os
from collections.abc import Callable
from typing import TypeVar

from containerhost.errors import HostActionFailed
from containerhost.linux.process import timelimit

Result = TypeVar("Result")

CLONE_FS = 0x200  # linux/sched.h
TIMEOUT = 30.0  # s; a process that starts a program may keep its namespaces from whoever asks
OWN = 0xFFFFFFFF  # no id: setfsuid(2) then only tells the present one

_libc = ctypes.CDLL(None, use_errno=True)


def within(namespace: str, act: Callable[[], object]) -> None:
    """Run ``act`` in a network or mount namespace.

    :param namespace: its file
    :raises HostActionFailed: as ``act`` does, or there is no such namespace
    """
    def run() -> None:
        enter(namespace)
        act()

    limited(run, f"cannot act in namespace {namespace}", TIMEOUT)


def limited(act: Callable[[], Result], problem: str, timeout: float | None = None) -> Result:
    """Run ``act`` in a thread that may change its identity, since it ends afterwards, and return the result.

    Its waits must be interruptible by a signal, or its process cannot be ended either; for a container's files see
    :mod:`containerhost.linux.process.childprocess`.

    :param problem: message if the kernel refuses
    :param timeout: seconds; the thread is abandoned when they are over
    :raises HostActionFailed: as ``act`` does, or the kernel refuses, or the time is over
    """
    try:
        return timelimit.within(timeout, problem, act)
    except timelimit.StillRunning as error:
        raise HostActionFailed(f"{problem}: {error}") from error
    except OSError as error:
        raise HostActionFailed(f"{problem}: {error.strerror or error}") from error


def enter(namespace: str) -> None:
    """Move the calling thread permanently into a namespace, where its paths are resolved.

    :raises OSError: the kernel refuses
    """
    # The C library's, because os.setns is there from Python 3.12 on. Who shares a root directory with other threads, as
    # all do at first, may not exchange it.
    with open(namespace, "rb") as there:
        if _libc.unshare(CLONE_FS) < 0 or _libc.setns(there.fileno(), 0) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def make_files_as(user: int, group: int) -> None:
    """Set the file system user and group of the calling thread permanently; it keeps its other rights.

    :raises OSError: the kernel refuses
    """
    for call, wanted in ((_libc.setfsgid, group), (_libc.setfsuid, user)):
        call(wanted)
        if call(OWN) != wanted:  # it has no other way to tell
            raise PermissionError(1, f"cannot be user {user} and group {group}")
