# SPDX-License-Identifier: Apache-2.0
"""Detach faulty GPUs from running containers that can do without, and reattach them when they recover.

All of a container's GPUs stay allocated to it: no other container gets one. The allocation records (state ATTACHED
or DETACHED) are authoritative: they are written after a GPU is detached and before it is attached; its resource
document follows. So a round killed at any step is finished by the next one.
"""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from containerhost import errors, vendors
from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.refusals import Request
from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.devices.grants import Grant, GrantOptions
from containerhost.elastic.gpuplan import GpuMember, Gpus
from containerhost.engines import gpubounds
from containerhost.engines.capabilities import Labelled, LiveMarks
from containerhost.engines.contract import Containers
from containerhost.engines.resizelock import resizing
from containerhost.guest import resources
from containerhost.inventory.scan import HostView, Inventory
from containerhost.privileged import Privileged


class EngineGpus:
    """Change the GPUs of one engine's containers."""

    def __init__(self, engine: Containers, marks: LiveMarks[Any], privileged: Privileged, locks: Path) -> None:
        self.view = HostView  # scans the host once for a round
        # An operator's command may use a device for minutes; the service does not wait for it.
        self.store = AllocationStore(locks, work_limit=0)
        self._engine = engine
        self._marks = marks
        self._privileged = privileged
        self._locks = locks
        self._allocator = DeviceAllocator(self.store, self.view, privileged, engine.held)

    @property
    def name(self) -> str:
        return self._engine.name

    def give(self, member: GpuMember, gpus: Gpus, more: Collection[str], view: HostView) -> str:
        """Attach GPUs that are allocated to a container, and update its document; undone on an error. Idempotent.

        :param more: those that it does not have for now; one that it may have, and does not know of, it is given too
        :returns: its document now
        :raises EngineConflict: it has changed since ``member`` was read
        :raises UnsupportedOnHost: this daemon cannot attach one to a running container
        """
        consumer, coming_ids = consumer_of(gpus), (gpus.ids | set(more)) - member.gpus
        with resizing(self._locks, member.name, 0):
            current = self._looked(member)
            with self.store.working(coming_ids):
                self._require_unchanged(consumer, gpus, more)
                inventory = view.refresh(coming_ids)
                if sick := [name for name in more if not inventory.get(name).healthy]:
                    raise errors.EngineConflict(f"GPU {', '.join(sick)} is faulty again")
                coming = self._allocator.grants(
                    [Request(name, options(member)) for name in sorted(coming_ids)], consumer, view)
                if hindrances := self._marks.hindrances(current, coming):
                    raise errors.UnsupportedOnHost("; ".join(hindrances))
                self._attach(member, coming, more, consumer, view)
            return self._relabel(member, member.gpus - gpus.ids - set(more), coming, inventory)

    def _attach(self, member: GpuMember, coming: Sequence[Grant], more: Collection[str], consumer: Consumer,
                view: HostView) -> None:
        self.store.attach(more, consumer)
        try:
            for grant in coming:
                self._engine.attach(member.name, grant)
            self._require_nodes(member, coming)
        except (errors.EngineUnavailable, errors.EngineTimeout):
            raise  # its devices are unknown: the next round continues
        except errors.ContainerHostError:
            going = [grant for grant in coming if grant.device.id in more]
            self._detach(member, going, [grant for grant in self._allocator.held(consumer, view)
                                         if grant.device.id not in more])
            self.store.detach(more, consumer, member.pid)
            raise

    def take(self, member: GpuMember, gpus: Gpus, devices: Collection[str], begin: Callable[[], None], view: HostView
             ) -> str:
        """Detach GPUs from a container whose guest was notified; they stay allocated to it. Idempotent.

        :param begin: called once all checks have passed
        :returns: its document now
        :raises DeviceInUse: a process has one open; it keeps all of them
        :raises EngineConflict: it has changed since ``member`` was read
        """
        consumer = consumer_of(gpus)
        going = grants(gpus.ids & set(devices), member, view.inventory)
        with resizing(self._locks, member.name, 0):
            self._looked(member)
            with self.store.working(grant.device.id for grant in going):
                self._require_unchanged(consumer, gpus, ())
                remaining = [grant for grant in self._allocator.held(consumer, view)
                             if grant.device.id not in devices]
                self._allocator.require_unused(going)
                begin()
                self._detach_all(member, going, remaining)
                self.store.detach([grant.device.id for grant in going], consumer, member.pid)
            return self._relabel(member, devices, (), view.inventory)

    def _detach(self, member: GpuMember, going: Sequence[Grant], remaining: Sequence[Grant]) -> None:
        for place, grant in enumerate(going):
            self._engine.detach(member.name, grant, (*remaining, *going[place + 1:]))

    def _detach_all(self, member: GpuMember, going: Sequence[Grant], remaining: Sequence[Grant]) -> None:
        """Detach all of the devices or none; a process may have opened one since the check."""
        try:
            self._detach(member, going, remaining)
            self._require_no_nodes(member, going, remaining)
            self._allocator.require_unused(going)
        except (errors.EngineUnavailable, errors.EngineTimeout):
            raise  # its devices are unknown: the next round continues
        except errors.ContainerHostError:
            for grant in going:
                self._engine.attach(member.name, grant)
            raise

    def _require_nodes(self, member: GpuMember, coming: Sequence[Grant]) -> None:
        """Require that a running container has the devices, as seen from the host.

        :raises NotAsGranted: it does not have them
        """
        seen = self._nodes(member) if coming else None
        missing = [node.path for grant in coming for node in grant.own_nodes
                   if seen is not None and seen.get(node.path) != (node.major, node.minor)]
        if missing:
            raise errors.NotAsGranted(f"container {member.name} does not see {', '.join(missing)}")

    def _require_no_nodes(self, member: GpuMember, going: Sequence[Grant], remaining: Sequence[Grant]) -> None:
        """Require that a running container does not have the devices, as seen from the host."""
        kept = {(node.major, node.minor) for grant in remaining for node in grant.nodes}
        numbers = {(node.major, node.minor) for grant in going for node in grant.own_nodes} - kept
        left = [path for path, number in (self._nodes(member) or {}).items() if tuple(number) in numbers]
        if left:
            raise errors.NotAsGranted(f"container {member.name} still sees {', '.join(left)}")

    def _nodes(self, member: GpuMember) -> dict[str, tuple[int, int]] | None:
        """Return the nodes that the container sees; None if it is not running: its configuration counts."""
        pid = self._engine.pid(member.name)
        return None if pid is None else self._privileged.inside(pid).nodes

    def _looked(self, member: GpuMember) -> Labelled:
        """Return the current state of a container.

        :raises EngineConflict: it was changed, or recreated, since it was listed
        """
        current: Labelled = self._marks.read(member.name)
        if (current.label(gpubounds.LABEL), current.label(resources.LABEL)) != (member.mark, member.document):
            raise errors.EngineConflict("it was changed by another process")
        return current

    def _relabel(self, member: GpuMember, going: Collection[str], coming: Sequence[Grant], inventory: Inventory) -> str:
        """Write the container's resources into its document."""
        known = {device.id: device for device in inventory.devices}
        document = resources.exchanged(member.document or "", going, coming, known)
        if document != member.document:
            self._marks.relabel(self._looked(member), {resources.LABEL: document})
        return document

    def _require_unchanged(self, consumer: Consumer, gpus: Gpus, more: Collection[str]) -> None:
        """Require that the container's allocations are unchanged since the round read them.

        :raises EngineConflict: they have changed
        """
        held, away = self._allocator.held_by(consumer), self._allocator.detached(consumer)
        if not gpus.ids <= held - away or not set(more) <= away:
            raise errors.EngineConflict("its allocations were changed by another process")


def consumer_of(gpus: Gpus) -> Consumer:
    if gpus.consumer is None:
        raise errors.EngineConflict("nothing is allocated to it")
    return gpus.consumer


def grants(device_ids: Collection[str], member: GpuMember, inventory: Inventory) -> tuple[Grant, ...]:
    return tuple(vendors.make_grant(inventory.get(name), options(member)) for name in sorted(device_ids))


def options(member: GpuMember) -> GrantOptions:
    return GrantOptions(gpu_capabilities=member.bounds.libraries)
