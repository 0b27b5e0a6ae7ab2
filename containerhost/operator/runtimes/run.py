# SPDX-License-Identifier: Apache-2.0
"""Run a command that has devices of this host for its life, on the same records as the clouds' containers.

The record is written before the command starts and freed after the last process of its control group has ended and the
devices are clean. A killed supervisor leaves the record, and its command is sent SIGTERM (prctl(2), PR_SET_PDEATHSIG);
once nothing of the run is left, the next run, or the next reconciliation of any driver, cleans and frees the devices.
"""

import dataclasses
import logging
import os
import resource
import signal
import subprocess
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import FrameType

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.refusals import Request
from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.devices.grants import Grant
from containerhost.devices.model import Kind
from containerhost.engines import affinity, corebinding
from containerhost.engines.affinity import Binding
from containerhost.errors import DeviceHeld, EngineBusy, NoPlacement
from containerhost.inventory import devicechoice, freedevices, topology
from containerhost.inventory.scan import Inventory
from containerhost.linux import run as programs
from containerhost.linux.idlist import id_list
from containerhost.linux.lock import FileLock
from containerhost.linux.process import memorypolicy, processlimits, rungroup
from containerhost.linux.process.rungroup import RunGroup
from containerhost.linux.sysfs import Host
from containerhost.operator.reports import choices
from containerhost.operator.runtimes import apptainer, podman, process, udocker
from hpcplan.affinity import Affinity

LOG = logging.getLogger(__name__)

TRIES = 10  # of a choice; another consumer may take a device meanwhile
# A terminal sends SIGINT and SIGQUIT to the command, too.
FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
KEPT = (signal.SIGINT, signal.SIGQUIT)
NO_BINDING = Binding()
# The command is sent a signal when its supervisor is killed. Podman passes it on to the container.
TIED = ("setpriv", "--pdeathsig", "TERM", "--")
TRANSLATIONS = {"apptainer": apptainer.translate, "podman": podman.translate, "singularity": apptainer.translate,
                "udocker": udocker.translate}


@dataclasses.dataclass(frozen=True)
class Wanted:
    """Describe the devices and cores that a command is to run with.

    :ivar gpus, functions: numbers of whole GPUs and of network functions
    :ivar slices: profiles, one for each slice of a GPU: ``1g.10gb``
    :ivar devices: further devices by their ids
    :ivar cores: cores for itself, by the affinity; 0 for no binding
    """

    gpus: int = 0
    functions: int = 0
    slices: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    cores: int = 0
    affinity: Affinity = Affinity.CPUMEM


def runtime(command: Sequence[str]) -> str:
    """Return the kind of program that a command starts: ``podman``, ``apptainer``, ``udocker`` or ``process``."""
    name = os.path.basename(command[0])
    return name if name in TRANSLATIONS else "process"


def translated(command: Sequence[str], grants: Sequence[Grant], group: str, binding: Binding = NO_BINDING
               ) -> tuple[list[str], Mapping[str, str]]:
    """Return a command that has the devices, and variables for its environment. Pure.

    :param group: control group below which a container tool is to make its own
    :param binding: cores and memory nodes of a container; other commands inherit those of this process
    :raises SpecError: the command cannot be given devices
    """
    return TRANSLATIONS.get(runtime(command), process.translate)(command, grants, group, binding)


def chosen(inventory: Inventory, host: Host, held: Collection[str], wanted: Wanted) -> tuple[str, ...]:
    """Return the ids of free devices, near each other.

    :param held: ids of allocated devices
    :raises SpecError: nothing is asked for
    :raises NoPlacement, DeviceNotFound: the host has not so many free ones, or not that one
    """
    found = [inventory.get(name).id for name in wanted.devices]
    for profile in wanted.slices:
        taken = {*found, *held}
        part = next((device.id for device in inventory.devices if device.kind is Kind.GPU_SLICE and device.healthy
                     and device.slice and device.slice.profile == profile and device.id not in taken), None)
        if part is None:
            raise NoPlacement(f"no GPU slice {profile} of this host is free and healthy: see `containerhost list`")
        found.append(part)
    if wanted.gpus or wanted.functions or not found:
        free = freedevices.candidates(inventory, host, dict.fromkeys((*held, *found)))
        links = choices.links(each.id for each in free if each.is_gpu) if host.live and wanted.gpus > 1 else {}
        found += [each.id for each in devicechoice.choose(free, wanted.gpus, wanted.functions, links).devices]
    return tuple(found)


class Runner:
    """Run commands with devices. For root.

    :param allocator: whose records the store has
    :param taken: tells which cores the engines' containers have for themselves
    """

    def __init__(self, store: AllocationStore, allocator: DeviceAllocator, host: Host,
                 taken: Callable[[], frozenset[int]] = frozenset) -> None:
        self._taken = taken
        self._store = store
        self._allocator = allocator
        self._host = host

    def run(self, command: Sequence[str], wanted: Wanted) -> int:
        """Run a command, wait for its end, end what it left running, and release its devices.

        :returns: its exit status; 128 and the signal's number for one that a signal ended, as of shells
        :raises SpecError, DeviceError: it cannot have the devices; nothing was changed
        :raises HostActionFailed: the command cannot be started; its devices were released
        """
        self.recover()
        name = str(uuid.uuid4())
        consumer = Consumer(rungroup.DRIVER, runtime(command), rungroup.supervisor(), name)
        group = RunGroup(name)
        translated(command, (), group.path)  # what cannot be translated is refused before anything changes
        grants = self._acquired(wanted, consumer)
        try:
            group.enter()
            _raise_limits(grants)
            words, environment = translated(command, grants, group.path, self._bound(wanted, grants))
            return _supervised(words, environment)
        finally:
            group.end()
            for complaint in self._allocator.release(consumer):
                LOG.error("%s", complaint)

    def _bound(self, wanted: Wanted, grants: Iterable[Grant]) -> Binding:
        """Bind this process, and thus what it starts, to cores and memory nodes near its devices that no other has.

        :raises UnsupportedOnHost: the host has not enough free cores where the affinity needs them
        """
        if not wanted.cores:
            return NO_BINDING
        near = tuple(grant.device.numa_node for grant in grants if grant.device.numa_node is not None)
        allowed = os.sched_getaffinity(0) - id_list(self._host.text("/sys/devices/system/cpu/isolated"))
        with FileLock(self._store.directory / corebinding.LOCK, corebinding.TIMEOUT).held(EngineBusy):
            binding = affinity.place(topology.read(self._host), allowed, self._taken() | rungroup.cores(),
                                     affinity.Request(wanted.affinity, wanted.cores, None, near))
            if binding.cores:
                os.sched_setaffinity(0, binding.cores)
        memorypolicy.bind(binding.nodes)
        return binding

    def recover(self) -> None:
        """Release what killed runs have left."""
        for complaint in self._allocator.reconciler.reconcile_runs():
            LOG.warning("%s", complaint)

    def _acquired(self, wanted: Wanted, consumer: Consumer) -> tuple[Grant, ...]:
        """Choose and acquire free devices; once more if another consumer takes one meanwhile."""
        for _ in range(TRIES):
            view = self._allocator.view()
            ids = chosen(view.inventory, self._host, self._store.records(), wanted)
            try:
                return self._allocator.acquire([Request(name) for name in ids], consumer, view)
            except DeviceHeld as error:
                if wanted.devices:
                    raise
                held = error
        raise held


def _raise_limits(grants: Iterable[Grant]) -> None:
    """Let this process and its children have the limits that the devices need; so do Podman's containers."""
    for name, size in {name: size for grant in grants for name, size in grant.limits.items()}.items():
        limit = processlimits.value(size)
        try:
            resource.setrlimit(processlimits.number_of(name), (limit, limit))
        except (OSError, ValueError) as error:  # root that lacks CAP_SYS_RESOURCE
            LOG.warning("The limit %s stays below %s, which the devices need: %s", name, size, error)


def _supervised(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command to its end, and pass on to it what is sent to this process.

    :raises HostActionFailed: it cannot be started
    """
    child: list[subprocess.Popen[bytes]] = []

    def forward(number: int, _: FrameType | None) -> None:
        for each in child if number in FORWARDED else ():
            each.send_signal(number)

    former = {number: signal.signal(number, forward) for number in (*FORWARDED, *KEPT)}
    try:
        child.append(programs.start([*TIED, *command], f"{command[0]} was not run", env=os.environ | environment))
        status = child[0].wait()
        return status if status >= 0 else 128 - status
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
