# SPDX-License-Identifier: Apache-2.0
"""One at a time for each VM: an action of oned, or what the node does by itself for a VM that stopped."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from containerhost.linux import lock
from onedriver.errors import DriverError

FILE = ".vms"  # the VM with id N has byte N of it


class Busy(DriverError):
    """Another process works on the VM."""


@contextlib.contextmanager
def held(state: Path, vm_id: int, limit: float) -> Iterator[None]:
    """Hold the VM's lock while the block runs.

    :param limit: seconds to wait for another process
    :raises Busy: it went on for longer
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock.byte_held(state / FILE, vm_id, limit))
        except TimeoutError as error:
            raise Busy(f"another command has worked on VM {vm_id} for more than {limit:g} s") from error
        yield


def is_held(state: Path, vm_id: int) -> bool:
    """Return whether another process works on the VM."""
    try:
        with held(state, vm_id, 0):
            return False
    except Busy:
        return True
