# SPDX-License-Identifier: Apache-2.0
"""Lock a VM: an action of oned, or what the node does by itself for a VM that stopped, one at a time."""

from contextlib import AbstractContextManager
from pathlib import Path

from containerhost.linux.lock import byte_held
from onedriver.errors import DriverError

FILE = ".vms"  # the VM with id N has byte N of it


class Busy(DriverError):
    """Another process works on the VM."""


def held(state: Path, vm_id: int, timeout: float) -> AbstractContextManager[None]:
    """Hold the VM's lock while the block runs.

    :param timeout: seconds to wait for another process
    :raises Busy: it went on for longer
    """
    return byte_held(state / FILE, vm_id, timeout, lambda _: Busy(
        f"another command has worked on VM {vm_id} for more than {timeout:g} s"))


def is_held(state: Path, vm_id: int) -> bool:
    """Return whether another process works on the VM."""
    try:
        with held(state, vm_id, 0):
            return False
    except Busy:
        return True
