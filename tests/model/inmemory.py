# SPDX-License-Identifier: Apache-2.0
"""Keep the devices of a host in memory, and records that a killed process does not write any more."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from containerhost.allocation.store import AllocationStore
from containerhost.devices.model import Device
from containerhost.inventory.scan import HostView, Inventory
from containerhost.linux.sysfs import Host


class View(HostView):
    def __init__(self, devices: Mapping[str, Device]) -> None:
        self._devices = devices

    @property
    def inventory(self) -> Inventory:  # type: ignore[override]
        return Inventory(tuple(self._devices.values()))

    def refresh(self, device_ids: Iterable[str]) -> Inventory:
        return self.inventory


class Store(AllocationStore):
    """:ivar step: is called before each change, and raises where the process is killed"""

    def __init__(self, root: Path, host: Host, step: Callable[[], object]) -> None:
        super().__init__(root, host=host)
        self._step = step

    def _put(self, name: str, text: str, mode: int = 0o644) -> None:
        self._step()
        super()._put(name, text, mode)

    def _remove(self, device_ids: Iterable[str]) -> None:
        self._step()
        super()._remove(device_ids)
