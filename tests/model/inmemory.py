# SPDX-License-Identifier: Apache-2.0
"""Keep devices and containers in memory, and records that a killed process does not write any more."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from containerhost import errors
from containerhost.allocation.store import AllocationStore
from containerhost.devices.model import Device
from containerhost.engines.contract import ContainerState
from containerhost.inventory.scan import HostView, Inventory
from containerhost.linux.sysfs import Host
from tests.model.hardware import FORMER_ANSWER, NO_ANSWER
from tests.unit.nova import fakes

STALLS = "stalls"  # this request to the engine and all further ones of the process time out, and are carried out later
#: Requests to an engine that change something.
CHANGES = ("create", "start", "stop", "freeze", "unfreeze", "delete", "attach", "detach", "rename", "update_devices",
           "reconfigure", "relabel", "set_limits")


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


class Stalled(errors.EngineTimeout):
    """The daemon stalls. It carries out the request when it goes on, after its caller has given up."""


class Engine(fakes.FakeEngine):
    """Let the plan of faults decide how each request ends.

    :ivar queued: changes that the daemon carries out when it does not stall any more
    :ivar former: the states of its containers before the last change
    """

    def __init__(self) -> None:
        super().__init__()
        self._late = False
        self.queued: list[Callable[[], Any]] = []
        self.former: tuple[ContainerState, ...] = ()
        self._list: str | None = None
        for name in CHANGES:
            setattr(self, name, functools.partial(self._changed, getattr(self, name)))

    def _changed(self, action: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """Make a change; of one that timed out the caller does not learn that it was made."""
        self._late, former = False, tuple(map(self._state, self.specs))
        try:
            result = action(*args, **more)
        except Stalled:
            self.queued.append(functools.partial(action, *args, **more))
            raise
        self.former = former
        if self._late:
            raise errors.EngineTimeout(f"{action.__name__}: no answer within the time limit")
        return result

    def containers(self) -> tuple[ContainerState, ...]:
        found = super().containers()
        return {NO_ANSWER: (), FORMER_ANSWER: self.former}.get(self._list or "", found)

    def go_on(self) -> None:
        """Carry out what was requested while the daemon stalled, in order; what is impossible by now fails."""
        queued, self.queued = self.queued, []
        for action in queued:
            with contextlib.suppress(errors.EngineError):
                action()

    def _faulty(self, method: str, fault: str | None) -> None:
        if fault == STALLS:
            raise Stalled(f"{method}: no answer within the time limit")
        if fault == "fails":
            raise errors.EngineError(f"{method}: the engine failed")
        if fault == "unavailable":
            raise errors.EngineUnavailable(f"{method}: the daemon is away")
        self._late = fault == "times out"
        self._list = fault
        self.asked.clear()
