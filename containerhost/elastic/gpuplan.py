# SPDX-License-Identifier: Apache-2.0
"""Decide which GPUs an opted-in container gets back, and which it must lose. Pure.

A container keeps its healthy GPUs, and as many of the others as its minimum requires. While it runs it gets no
faulty GPU.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from containerhost.allocation.states import State
from containerhost.allocation.store import Allocation, Consumer
from containerhost.devices.model import Device, Kind
from containerhost.elastic.plan import Running
from containerhost.engines.gpubounds import GpuBounds
from containerhost.inventory.scan import Inventory


@dataclasses.dataclass(frozen=True)
class GpuMember(Running):
    """Describe a container that may lose GPUs."""

    bounds: GpuBounds

    @property
    def gpus(self) -> frozenset[str]:
        """Return the whole GPUs that its document lists."""
        return frozenset(device["id"] for device in self.told("devices") or () if device["kind"] == Kind.GPU)


class Gpus(NamedTuple):
    """Hold the whole GPUs that are allocated to a container.

    :ivar consumer: None if it has none, or its records name several
    :ivar present: attached ones, which are all on this host
    :ivar detached: currently detached ones
    """

    consumer: Consumer | None
    present: tuple[Device, ...] = ()
    detached: tuple[str, ...] = ()

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(device.id for device in self.present)


class Decision(NamedTuple):
    """Decide which GPUs a container gets back or loses, and whether its resource document must be corrected."""

    give: tuple[str, ...] = ()
    take: tuple[str, ...] = ()
    correct: bool = False


def allocated(engine: str, name: str, records: Mapping[str, Allocation], inventory: Inventory) -> Gpus:
    """Return the GPUs of a container.

    :param engine: as the records name it
    """
    mine = {device_id: record for device_id, record in records.items()
            if (record.consumer.engine, record.consumer.container) == (engine, name)}
    consumers = {record.consumer for record in mine.values()}
    if len(consumers) != 1:
        return Gpus(None)
    gpus = tuple(device for device in inventory.devices if device.kind is Kind.GPU and device.id in mine
                 and mine[device.id].state is State.ATTACHED)
    return Gpus(consumers.pop(), gpus, tuple(sorted(device_id for device_id, record in mine.items()
                                                    if record.state is State.DETACHED)))


def decide(member: GpuMember, gpus: Gpus, well: Collection[str]) -> Decision:
    """Return the decision for a container."""
    give = tuple(name for name in gpus.detached if name in well)
    # A device without a driver has no nodes, so there is nothing to detach.
    bad = sorted((device for device in gpus.present if not device.healthy and device.nodes),
                 key=lambda device: device.sound)
    spare = max(0, len(gpus.present) - member.bounds.least)
    take = tuple(device.id for device in bad[:spare])
    # A GPU that disappeared and returned unhealthy is detached without a notice.
    return Decision(give, take, member.gpus != gpus.ids - (set(take) - member.gpus))


def row(member: GpuMember, gpus: Gpus, reasons: Mapping[str, str]) -> dict[str, Any]:
    """Return the status row of a container's GPUs."""
    return {"present": sorted(gpus.ids), "least": member.bounds.least, "most": len(gpus.present) + len(gpus.detached),
            "detached": {name: reasons.get(name, "") for name in gpus.detached}}
