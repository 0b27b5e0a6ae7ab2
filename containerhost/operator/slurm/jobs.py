# SPDX-License-Identifier: Apache-2.0
"""Allocate the devices that Slurm has chosen for a job to it in the allocation records, and release them.

Slurm calls :meth:`JobDevices.allocate` before a job starts on this node and :meth:`JobDevices.release` after its
last process there has ended; :meth:`JobDevices.reconcile` finishes interrupted calls of these. A device held by
another consumer is not a fault of the node: the job is requeued, and the node stays in service. A device that is
sick, or cannot be cleaned, drains the node, with the reason; it is resumed when all devices of its gres.conf are
healthy.
"""

import contextlib
import itertools
import logging
import re
from collections.abc import Iterator

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.refusals import Request, own_nodes
from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.devices.model import Device, Kind
from containerhost.errors import ContainerHostError, DeviceHeld, DeviceNotFound, EngineBusy, HostActionFailed, SpecError
from containerhost.inventory.scan import Inventory
from containerhost.linux import controlgroups
from containerhost.linux.lock import FileLock
from containerhost.linux.process.processes import pids
from containerhost.linux.sysfs import Host
from containerhost.operator.slurm.client import Files, Slurm

LOG = logging.getLogger(__name__)

DRIVER, ENGINE = "slurm", "job"  # driver and engine of the consumers that are jobs
OURS = "containerhost: "  # prefix of the reasons of nodes that these functions drain and resume
LOCK, LOCK_TIMEOUT = ".slurm", 600.0  # s; a holder may clean several devices
CHECK_LOCK_TIMEOUT = 5.0  # s; Slurm starts the next health check soon, and kills one after 60 s
# Of proctrack/cgroup: /slurm_node17/uid_1000/job_42/step_0; of version 2 /system.slice/slurmstepd.scope/job_42/step_0.
_GROUP = re.compile(r"/(?:slurm[^/]*/uid_[0-9]+|system\.slice/[^/]*slurmstepd\.scope)/job_([0-9]+)(?=/|$)")


def processes(job: str) -> tuple[int, ...]:
    """Return the processes of a job on this host, if Slurm keeps jobs in control groups."""
    return tuple(pid for pid, found in _members() if found == job)


def _members() -> Iterator[tuple[int, str]]:
    host = Host()
    for pid in pids():
        for found in {match[1] for path in controlgroups.of(pid, host).values() if (match := _GROUP.match(path))}:
            yield pid, found


class JobDevices:
    """Allocate devices to jobs of Slurm. For root.

    :param allocator: whose records the store has, and whose ``holders`` are :func:`processes`
    """

    def __init__(self, store: AllocationStore, allocator: DeviceAllocator, slurm: Slurm) -> None:
        self._store = store
        self._allocator = allocator
        self._slurm = slurm

    def allocate(self, job: str, cluster: str) -> None:
        """Allocate the devices that Slurm chose for a job, or remove the job from this node. Idempotent.

        :raises HostActionFailed: the job could not be removed from the node
        """
        consumer = Consumer(DRIVER, ENGINE, job, cluster)
        try:
            with self._locked():
                view = self._allocator.view()
                requests = [Request(_device(view.inventory, files).id) for files in self._slurm.taken(job)]
                try:
                    self._allocator.acquire(requests, consumer, view)
                except DeviceHeld:
                    self._reconcile()  # a job that has ended may still have the device
                    self._allocator.acquire(requests, consumer)
        except ContainerHostError as error:
            LOG.error("Job %s does not start here: %s", job, error)
            if complaint := self._complaint():
                self._drain(complaint)
            self._slurm.requeue(job, f"{OURS}{error}", hold=isinstance(error, SpecError))

    def release(self, job: str, cluster: str) -> bool:
        """Clean and free the devices of a job, or drain the node. Idempotent.

        :returns: whether all are free
        """
        try:
            with self._locked():
                complaints = self._allocator.release(Consumer(DRIVER, ENGINE, job, cluster))
        except ContainerHostError as error:
            complaints = (str(error),)
        if complaints:
            self._drain("; ".join(complaints))
        return not complaints

    def reconcile(self) -> None:
        """Release the devices of ended jobs, and resume this node if the reason of its drain is resolved.

        :raises EngineBusy: another call is running
        """
        with self._locked(CHECK_LOCK_TIMEOUT):
            complaints = self._reconcile()
            for complaint in complaints:
                LOG.warning("%s", complaint)
            if not complaints and self._slurm.reason().startswith(OURS) and not self._complaint():
                self._slurm.resume()

    def _reconcile(self) -> tuple[str, ...]:
        """Release the devices of jobs that Slurm no longer has on this node, and that have no processes."""
        if not self._store.consumers_of(DRIVER, ENGINE):
            return ()
        alive = self._slurm.jobs().union(job for _, job in _members())
        return self._allocator.reconciler.reconcile(DRIVER, ENGINE, alive)

    def _complaint(self) -> str:
        """Return why this node should run no jobs; empty if all devices of gres.conf are present, healthy and clean."""
        try:
            for record in self._store.records().values():
                if record.blocked and record.consumer.driver == DRIVER:
                    return record.blocked
            inventory = self._allocator.view().inventory
            for files in itertools.chain(*self._slurm.devices().values()):
                device = _device(inventory, files)
                if not device.sound:
                    return f"device {device.id} is not healthy: {'; '.join(device.health)}"
        except ContainerHostError as error:
            return str(error)
        return ""

    def _drain(self, reason: str) -> None:
        """Drain this node, unless an operator already did."""
        with contextlib.suppress(HostActionFailed):  # Slurm also drains the node if its prolog or epilog fails
            if not (former := self._slurm.reason()) or former.startswith(OURS):
                self._slurm.drain(f"{OURS}{reason}")

    def _locked(self, timeout: float = LOCK_TIMEOUT) -> contextlib.AbstractContextManager[int]:
        """Exclude other calls of Slurm on this host: a repair must not interfere with an allocation."""
        return FileLock(self._store.directory / LOCK, timeout).held(EngineBusy)


def _device(inventory: Inventory, files: Files) -> Device:
    """Return the device to which nodes in Slurm's list belong.

    :raises DeviceNotFound: it is not on this host
    """
    found = [device for device in inventory.devices if device.kind in (Kind.GPU, Kind.NET)
             and not {node.path for node in own_nodes(device)}.isdisjoint(files)]
    if len(found) != 1:
        raise DeviceNotFound(f"{', '.join(files) or 'a device'} of gres.conf is not a node of a GPU or network "
                             "function: see `containerhost doctor`; after a change of the hardware generate gres.conf "
                             "again")
    return found[0]
