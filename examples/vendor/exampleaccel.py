# SPDX-License-Identifier: Apache-2.0
"""A vendor plug-in outside the tree: an accelerator with nodes in a directory of its own and a reset of its own.

Its (fictitious) driver gives each card /dev/exampleaccel/accel<N>, all cards /dev/exampleaccel/control, and in sysfs,
below the PCI function, ``exampleaccel/accel<N>/dev``, ``serial`` and ``status`` (``ok``, or what is wrong). It writes
``exampleaccel 0000:c1:00.0: firmware: <what happened>`` to the kernel's log.
"""

import dataclasses
import fnmatch
import functools
import re
from collections.abc import Mapping
from typing import ClassVar

from containerhost.devices import health
from containerhost.devices.health.kernellog import DEVICES_LIMIT, DriverLog
from containerhost.devices.health.rules import Health, Rule, Verdict, health_of
from containerhost.devices.model import CharNode, Device, Kind, NodeUse, PciFunction
from containerhost.errors import HostActionFailed
from containerhost.linux.poll import wait_until
from containerhost.linux.sysfs import Host
from containerhost.privileged import PCI, Privileged
from containerhost.vendors import base

RESETTING = "resetting"
RESET_TIMEOUT = 60.0  # s
POLL_INTERVAL = 0.05  # s

STATUS = Rule(
    name="exampleaccel-status", verdict=Verdict.SICK, reads="status below the PCI function",
    says="its firmware says: {status}", well="status is ok", source="the driver's documentation")
FIRMWARE = Rule(
    name="exampleaccel-firmware", verdict=Verdict.SICK, reads="exampleaccel: firmware in /dev/kmsg",
    says="its firmware failed: {text}", well="the card was reset", source="the driver's documentation")
MESSAGE = re.compile(r"exampleaccel ([0-9a-f:.]{7,16}): firmware: (.{1,80})")


class FirmwareLog(DriverLog):
    prefix: ClassVar[str] = "exampleaccel "

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def take(self, text: str) -> None:
        match = MESSAGE.match(text)
        if match and len(self._last) < DEVICES_LIMIT:
            self._last[match[1]] = match[2]

    def acknowledge(self, address: str) -> None:
        self._last.pop(address, None)

    def health(self) -> Mapping[str, Health]:
        return {address: health_of([FIRMWARE.finds(text=text)]) for address, text in self._last.items()}


class ExampleAccel(base.GpuVendor):
    name: ClassVar[str] = "exampleaccel"
    nodes: ClassVar[tuple[str, ...]] = ("exampleaccel/*",)
    lxd_gpu_nodes: ClassVar[tuple[str, ...]] = ()  # LXD has no device type for it: it is attached by its nodes
    driver_log: ClassVar[type[DriverLog] | None] = FirmwareLog
    vendor_id: ClassVar[str] = "c0de"
    drivers: ClassVar[frozenset[str]] = frozenset({"exampleaccel"})

    def describe(self, function: PciFunction) -> tuple[Device, ...]:
        gpu = base.device(function, Kind.GPU, self.name, health=function.health + self.driver_complaints(function))
        if function.driver not in self.drivers:
            return (gpu,)
        nodes = self._own_nodes(function) + self._control
        status = self.host.text(f"{function.directory}/status") or "nothing"
        found = health_of([] if status == "ok" else [STATUS.finds(status=status)])
        return (dataclasses.replace(
            gpu, nodes=nodes, uuid=self.host.text(f"{function.directory}/serial"), notes=gpu.notes + found.notes,
            health=gpu.health + found.complaints + tuple(health.of_nodes(self.host, nodes))),)

    def _own_nodes(self, function: PciFunction) -> tuple[CharNode, ...]:
        directory = f"{function.directory}/exampleaccel"
        numbers = ((name, self.host.char_number(f"{directory}/{name}/dev"))
                   for name in fnmatch.filter(self.host.names(directory), "accel[0-9]*"))
        return tuple(CharNode(f"/dev/exampleaccel/{name}", *number) for name, number in numbers if number)

    @functools.cached_property
    def _control(self) -> tuple[CharNode, ...]:
        """Return the node that every holder of a card needs; it opens no card."""
        major = self.host.char_majors.get("exampleaccel")
        return () if major is None else (CharNode("/dev/exampleaccel/control", major, 255, NodeUse.SHARED),)

    @classmethod
    def reset(cls, address: str) -> bool:
        """Reset a card: the driver survives a function-level reset, which clears the card's memory.

        The firmware starts after that, and is waited for: the card is given to the next container."""
        if not Privileged().reset(address):
            return False
        status, host = f"{PCI}/devices/{address}/status", Host()
        if not wait_until(lambda: host.text(status) != RESETTING, RESET_TIMEOUT, POLL_INTERVAL):
            raise HostActionFailed(f"its firmware has not started within {RESET_TIMEOUT:g} s after the reset")
        return True
