# SPDX-License-Identifier: Apache-2.0
"""Detect containers of older VMs whose ids OpenNebula has reused after its database was restored.

The creation time of a VM (STIME) distinguishes them. Some of the transfer driver's requests, and the end of a
refused VM, have only the id: a mark on the node protects the container from them.
"""

from pathlib import Path

from containerhost.engines.contract import ContainerState
from containerhost.errors import EngineConflict
from containerhost.linux.files import atomic_write
from onedriver.node.names import STIME
from onedriver.vm import Vm

MARKS = "namesakes"  # below the driver's directory


def require_own(state: ContainerState, vm: Vm, directory: Path) -> None:
    """Refuse a container of another VM that had the same id.

    :param directory: the driver's own
    :raises EngineConflict: the container belongs to another VM that had the id of ``vm``; it is marked
    """
    made = state.labels.get(STIME)
    if made is None or not vm.stime or made == str(vm.stime):
        return
    mark = directory / MARKS / state.name
    mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    atomic_write(mark, made.encode())
    raise EngineConflict(f"container {state.name} belongs to another VM {vm.id}, created at {made} seconds since the "
                         f"epoch (STIME), not at {vm.stime}: OpenNebula's database was restored, or another "
                         "OpenNebula has this node. The container is not changed. Save its data, then rename or "
                         "remove it")


def is_marked(state: ContainerState, directory: Path) -> bool:
    """Return whether a container was found to belong to another VM than the one that has its id now."""
    mark = directory / MARKS / state.name
    if not mark.exists():
        return False
    if mark.read_text(encoding="ascii") == state.labels.get(STIME):
        return True
    mark.unlink()  # that container no longer exists
    return False
