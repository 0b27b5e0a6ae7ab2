# SPDX-License-Identifier: Apache-2.0
"""Measure the probes' data, with few requests to the engine for any number of containers."""

import json
import logging
import math
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from containerhost import vendors
from containerhost.allocation import faults
from containerhost.allocation.store import AllocationStore
from containerhost.devices.model import Kind
from containerhost.engines.contract import Containers, ContainerState, Status
from containerhost.errors import EngineError, EngineUnavailable
from containerhost.inventory.scan import scan
from containerhost.linux.files import atomic_write
from containerhost.linux.storage.diskio import disk_io
from containerhost.linux.sysfs import Host
from containerhost.vendors.base import Use
from onedriver.errors import BadInput
from onedriver.node import probes, vmlock
from onedriver.node.names import LABEL
from onedriver.node.pcifilter import PciFilter
from onedriver.node.probes import ROOT, Sample, Space

if TYPE_CHECKING:
    from containerhost.inventory.topology import CpuTimes

LOG = logging.getLogger(__name__)

LAST = "cpu-times.json"  # total and idle nanoseconds of the previous round
SAMPLES = "vm-cpu-times.json"  # samples of the previous round, by container
DISKS = "vm-disk-use.json"
UNHARMED = "vm-no-faults-told.json"  # first processes of containers that were notified of no faults, by container
DISK_ROUNDS = 20  # rounds between two measurements of the use of every disk
DISK_TIME = 0.1  # s per round
WHOLE = "vm-states-told"  # its mtime is the time of the last complete list
ASKED = ".monitor"  # in a datastore's directory
TELL_TIME = 5.0  # s; writing into a container takes some milliseconds
WHOLE_PERIOD = 180  # seconds; a complete list costs oned a write to its database


class Measure:
    """Measure the node and its containers for monitoring, by one method for each probe.

    :param owners: directory of the allocation records
    :param state: the driver's directory, for data kept between rounds
    :param reported: selects the devices that are reported
    :param datastores: OpenNebula's directory of them, which need not exist yet
    """

    def __init__(self, driver: str, engine: Containers, containers: Callable[[], tuple[ContainerState, ...]],
                 owners: Path, state: Path, reported: PciFilter, host: Host, datastores: Path) -> None:
        self._driver = driver
        self._engine = engine
        self._containers = containers
        self._store = AllocationStore(owners)
        self._state = state
        self._reported = reported
        self._host = host
        self._datastores = datastores

    def host_system(self) -> str:
        from containerhost.inventory import topology  # noqa: PLC0415  (what a round tells of VMs needs none)

        records = self._store.records().values()
        own = {record.device_id for record in records if record.consumer.driver == self._driver and not record.blocked}
        elsewhere = {record.device_id for record in records} - own
        found = probes.host_system(self._driver, self._engine.name, self._engine.server(), topology.read(self._host),
                                   scan(self._host), own, elsewhere, self._reported)
        return "\n".join(filter(None, (found, probes.wilds(self._containers()), self._space())))

    def _space(self) -> str:
        """Return the space of the directory of datastores, and of those whose TM driver requests it by a file.

        Without the former oned schedules no VM to a host. On a new node the first VM's transfer creates the
        directory: its file system's space is reported until then."""
        directory = self._datastores
        asked = sorted(int(file.parent.name) for file in directory.glob(f"*/{ASKED}") if file.parent.name.isdigit())
        location = next(path for path in (directory, *directory.parents) if path.is_dir())
        return probes.datastores(space(location), [space(directory / str(number), number) for number in asked])

    def host_monitor(self) -> str:
        from containerhost.inventory import topology  # noqa: PLC0415  (what a round tells of VMs needs none)

        host, busy = topology.read(self._host), self._busy(topology.cpu_times(self._host))
        return probes.host_monitor(topology.memory(self._host), len(host.cpus), busy, network(self._host), host.nodes)

    def vm_status(self) -> str:
        found, are_all = self._idle()
        whole = probes.complete() if are_all and self._is_time_for_all() else ""
        return "\n".join(filter(None, (whole, probes.vm_status(found))))

    def _idle(self) -> tuple[tuple[ContainerState, ...], bool]:
        """Return the containers of VMs without a running action, and whether these are all.

        oned interprets a container that is stopped for a restart as a VM that is powered off, and one that exists
        before the end of a deploy as the success of that, which may still fail. So such VMs are excluded, and the
        list is not marked as complete. Containers are read again after the check of the locks.
        """
        found = self._containers()
        busy = {label for state in found if (label := state.labels.get(LABEL, "")).isdecimal()
                and vmlock.is_held(self._state, int(label))}
        if busy or any(state.status is Status.STOPPED and LABEL in state.labels for state in found):
            found = self._containers()
        return tuple(state for state in found if state.labels.get(LABEL) not in busy), not busy

    def vm_monitor(self) -> str:
        """Report the VMs' metrics. Without devices in use, neither devices nor vendors' libraries are read."""
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        measured = [(state, metrics) for state, metrics in self._engine.measured()
                    if LABEL in state.labels and state.status is Status.RUNNING]
        before = samples(self._state / SAMPLES)
        self._keep(SAMPLES, {state.name: (metrics.pid or 0, metrics.cpu_time, now) for state, metrics in measured})
        disks = self._disks([state.name for state, _ in measured])
        gpus, faulty = self._devices()
        self._tell_faults(faulty, {state.name: metrics.pid for state, metrics in measured})
        return "\n".join(probes.vm_monitor(
            state, probes.vm_values(metrics, now, before.get(state.name))
            | probes.io_values(disk_io(self._host, metrics.pid) if metrics.pid else None)
            | probes.gpu_values(gpus.get(state.name, ())) | probes.fault_values(faulty.get(state.name, ())),
            probes.disk_values(disks.get(state.name, 0))) for state, metrics in measured)

    def _disks(self, names: Sequence[str]) -> Mapping[str, int]:
        """Return the used bytes of root disks, if the storage pool reports them.

        Each needs a request to the engine, so a round queries new containers and the share of the others with the
        oldest values, for at most ``DISK_TIME``."""
        kept = uses(self._state / DISKS)
        found = {name: kept[name] for name in names if name in kept}
        stale = sorted(found, key=lambda name: found[name].moment)[:math.ceil(len(names) / DISK_ROUNDS)]
        end = time.monotonic() + DISK_TIME
        for name in [*(name for name in names if name not in found), *stale]:
            if time.monotonic() > end:
                break
            try:
                told = self._engine.disks(name)
                if told is None:
                    return {}
                found[name] = Used(told.get(ROOT, 0), time.time())
            except EngineUnavailable:
                raise
            except EngineError as error:
                LOG.info("The disk use of container %s is unknown: %s", name, error)
        self._keep(DISKS, found)
        return {name: used.size for name, used in found.items()}

    def _devices(self) -> tuple[Mapping[str, Sequence[Use | None]], Mapping[str, Sequence[str]]]:
        """Return the use of each GPU, and the faults of devices, by container."""
        held = [record for record in self._store.records().values() if record.consumer.driver == self._driver]
        uses: dict[str, list[Use | None]] = {}
        faulty: dict[str, list[str]] = {}
        if not held:
            return uses, faulty
        known, inventory = vendors.usage(), scan(self._host)
        gpus = {device.id for device in inventory.devices if device.kind is Kind.GPU}
        for record in held:
            container = record.consumer.container
            if record.device_id in gpus:
                uses.setdefault(container, []).append(known.get(record.device_id))
            faulty.setdefault(container, []).extend(faults.of([record], inventory))
        return uses, faulty

    def _tell_faults(self, faulty: Mapping[str, Sequence[str]], pids: Mapping[str, int | None]) -> None:
        """Notify containers of faults of their devices, as many as possible in ``TELL_TIME``.

        Containers that block the host delay neither a round nor, in the long run, the others. A container without
        faults is notified once after its start and once after a fault: each access to its files starts a process.

        :param faulty: by container, of all that hold devices
        :param pids: the first process of each container that runs
        """
        running = {name: pid for name in faulty if (pid := pids.get(name))}
        before = first_processes(self._state / UNHARMED)
        known = {name: pid for name, pid in running.items() if not faulty[name] and before.get(name) == pid}
        told = [name for name in running if name not in known]
        if told:
            random.shuffle(told)
            end = time.monotonic() + TELL_TIME
            from containerhost.guest.guestfiles import GuestFiles  # noqa: PLC0415  (few VMs have devices)
            from containerhost.guest.guestnotice import GuestNotice  # noqa: PLC0415  (likewise)
            from containerhost.privileged import Privileged  # noqa: PLC0415  (likewise)

            notice = GuestNotice(GuestFiles(pids.get, Privileged()), 0)
            for number, name in enumerate(told):
                if time.monotonic() > end:
                    LOG.warning("%d of %d containers were notified of their devices' faults within %g s; the next "
                                "rounds continue", number, len(told), TELL_TIME)
                    break
                if notice.tell_faults(name, faulty[name]) and not faulty[name]:
                    known[name] = running[name]
        if known != before:
            self._keep(UNHARMED, known)

    def _is_time_for_all(self) -> bool:
        file = self._state / WHOLE
        told = file.stat().st_mtime if file.exists() else 0
        if 0 <= time.time() - told < WHOLE_PERIOD:
            return False
        self._keep(WHOLE, None)
        return True

    def _busy(self, times: "CpuTimes") -> float:
        """Return the share of busy time since the previous sample, or since the host's start."""
        now = totals(times)
        before = last(self._state / LAST)
        self._keep(LAST, now)
        return share(before, now)

    def _keep(self, name: str, content: Any) -> None:
        file = self._state / name
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        atomic_write(file, json.dumps(content).encode())


def totals(times: "CpuTimes") -> tuple[int, int]:
    """Return the total and idle time."""
    idle = times.idle + times.iowait
    return times.kernel + times.user + idle, idle


def last(file: Path) -> tuple[int, int]:
    """Return the previous sample; none if it cannot be read."""
    try:
        total, idle = json.loads(file.read_text())
        return int(total), int(idle)
    except (OSError, ValueError, TypeError):
        return 0, 0


def samples(file: Path) -> dict[str, Sample]:
    """Return the previous samples; {} if they cannot be read."""
    try:
        return {name: Sample(int(pid), int(cpu_time), float(moment))
                for name, (pid, cpu_time, moment) in json.loads(file.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def first_processes(file: Path) -> dict[str, int]:
    """Return the first processes of containers that a file names, or {} if it cannot be read."""
    try:
        return {name: int(pid) for name, pid in json.loads(file.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


class Used(NamedTuple):
    """Hold the bytes that a disk used at a moment, in seconds since 1970."""

    size: int
    moment: float


def uses(file: Path) -> dict[str, Used]:
    """Return the known use of disks; {} if it cannot be read."""
    try:
        return {name: Used(int(size), float(moment)) for name, (size, moment) in json.loads(file.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def share(before: tuple[int, int], now: tuple[int, int]) -> float:
    """Return the share of time in use, 0 to 1. A total below the previous one means that the host has restarted."""
    if now[0] < before[0]:
        before = (0, 0)
    total, idle = now[0] - before[0], now[1] - before[1]
    return 1 - idle / total if total > 0 else 0.0


def network(host: Host) -> tuple[int, int]:
    """Return the bytes received and sent by the host's physical cards, so that forwarded bytes count once."""
    names = [name for name in host.names("/sys/class/net") if host.exists(f"/sys/class/net/{name}/device")]
    received, sent = (sum(host.number(f"/sys/class/net/{name}/statistics/{counter}") or 0 for name in names)
                      for counter in ("rx_bytes", "tx_bytes"))
    return received, sent


def space(directory: Path, datastore: int = -1) -> Space:
    """Return the space of the file system that the directory is in, as df shows it."""
    found = os.statvfs(directory)
    size = found.f_frsize
    return Space(datastore, found.f_blocks * size, (found.f_blocks - found.f_bfree) * size, found.f_bavail * size)


PROBES: dict[str, Callable[[Measure], str]] = {
    "host/system": Measure.host_system, "host/monitor": Measure.host_monitor, "vm/status": Measure.vm_status,
    "vm/monitor": Measure.vm_monitor}


def probe(name: str, measure: Callable[[], Measure]) -> str:
    if name not in PROBES:
        raise BadInput(f"there is no probe {name!r}; there are {', '.join(PROBES)}")
    return PROBES[name](measure())
