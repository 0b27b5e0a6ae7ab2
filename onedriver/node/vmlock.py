# SPDX-License-Identifier: Apache-2.0
"""One at a time for each VM: an action of oned, or what the node does by itself for a VM that stopped."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from onedriver.errors import DriverError

FILE = ".vms"  # the VM with id N has byte N of it; a process that ends lets its bytes go
PAUSE = 0.05  # s between two tries


class Busy(DriverError):
    """Another process works on the VM."""


@contextlib.contextmanager
def held(state: Path, vm_id: int, limit: float) -> Iterator[None]:
    """:param limit: seconds to wait for another process
    :raises Busy: it went on for longer
    """
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(state / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        end = time.monotonic() + limit
        while not taken(handle, vm_id):
            if time.monotonic() >= end:
                raise Busy(f"another command has worked on VM {vm_id} for more than {limit:g} s")
            time.sleep(PAUSE)
        yield
    finally:
        os.close(handle)


def is_held(state: Path, vm_id: int) -> bool:
    """Return whether another process works on the VM."""
    try:
        with held(state, vm_id, 0):
            return False
    except Busy:
        return True


def taken(handle: int, vm_id: int) -> bool:
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, vm_id)
    except (BlockingIOError, PermissionError):
        return False
    return True
