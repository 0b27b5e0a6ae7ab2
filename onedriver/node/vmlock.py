# SPDX-License-Identifier: Apache-2.0
"""Lock a VM for one action of oned, or of the node for a stopped VM, and limit the number of the latter."""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from containerhost.linux.lock import byte_held, byte_is_held
from onedriver.errors import DriverError

FILE = ".vms"  # byte N is the lock of the VM with id N
WORKERS = ".workers"  # each process with long work for stopped VMs locks one byte
MOST_WORKERS = 4


class Busy(DriverError):
    """Signal that another process works on the VM."""


def held(state: Path, vm_id: int, timeout: float) -> AbstractContextManager[int]:
    """Hold the VM's lock within the block.

    :param timeout: seconds to wait for another process
    :raises Busy: another process worked on it for longer
    """
    return byte_held(state / FILE, vm_id, timeout, lambda _: Busy(
        f"another command has worked on VM {vm_id} for more than {timeout:g} s"))


def is_held(state: Path, vm_id: int) -> bool:
    """Return whether another process works on the VM."""
    return byte_is_held(state / FILE, vm_id)


@contextlib.contextmanager
def worker(state: Path) -> Iterator[bool]:
    """Enter as one of at most :data:`MOST_WORKERS` processes for the block, and yield whether there was room."""
    with contextlib.ExitStack() as stack:
        yield any(_entered(stack, state, number) for number in range(MOST_WORKERS))


def may_work(state: Path) -> bool:
    """Return whether one more process could become a :func:`worker`."""
    return not all(byte_is_held(state / WORKERS, number) for number in range(MOST_WORKERS))


def _entered(stack: contextlib.ExitStack, state: Path, number: int) -> bool:
    try:
        stack.enter_context(byte_held(state / WORKERS, number, 0, Busy))
    except Busy:
        return False
    return True
