# SPDX-License-Identifier: Apache-2.0
"""Run a command that has devices of this host for its lifetime, on the same records as the clouds' containers.

The record is written before the command starts and freed after the last process of its control group has ended and the
devices are clean. A killed supervisor leaves the record, and its command is sent SIGTERM (prctl(2), PR_SET_PDEATHSIG);
once nothing of the run is left, the next run, or the next reconciliation of any driver, cleans and frees the devices.
"""

import contextlib
import dataclasses
import itertools
import logging
import os
import pwd
import resource
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Self

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.refusals import Request
from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.devices.grants import Grant
from containerhost.devices.model import Kind
from containerhost.engines import affinity, corebinding
from containerhost.engines.affinity import Binding
from containerhost.errors import DeviceHeld, EngineBusy, NoPlacement, SpecError
from containerhost.inventory import devicechoice, freedevices, topology
from containerhost.inventory.scan import Inventory
from containerhost.linux import run as programs
from containerhost.linux.idlist import id_list
from containerhost.linux.lock import FileLock
from containerhost.linux.process import memorypolicy, processlimits, rungroup
from containerhost.linux.process.rungroup import RunGroup
from containerhost.linux.sysfs import Host
from containerhost.operator.reports import choices
from containerhost.operator.runtimes import apptainer, mpi, podman, process, udocker
from hpcplan.affinity import Affinity

LOG = logging.getLogger(__name__)

TRIES = 10  # attempts to choose devices; another consumer may allocate one meanwhile
# A terminal sends SIGINT and SIGQUIT also to the command.
FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
KEPT = (signal.SIGINT, signal.SIGQUIT)
NO_BINDING = Binding()
# The command gets a signal if its supervisor is killed. Podman forwards it to the container.
TIED = ("setpriv", "--pdeathsig", "TERM")
TRANSLATIONS = {"apptainer": apptainer.translate, "podman": podman.translate, "singularity": apptainer.translate,
                "udocker": udocker.translate}


@dataclasses.dataclass(frozen=True)
class Wanted:
    """Describe the devices and cores for a command, or for each rank of an MPI program.

    :ivar slices: profiles, one for each slice of a GPU: ``1g.10gb``
    :ivar cores: exclusive cores, by the affinity; 0 for no binding
    :ivar ranks: of an MPI program, started by mpirun; 0 for a command that is started directly
    :ivar user: whom the command runs as; None for root
    """

    gpus: int = 0
    functions: int = 0
    slices: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    cores: int = 0
    affinity: Affinity = Affinity.CPUMEM
    ranks: int = 0
    user: pwd.struct_passwd | None = None


def runtime(command: Sequence[str]) -> str:
    """Return the kind of program that a command starts: ``podman``, ``apptainer``, ``udocker`` or ``process``."""
    name = os.path.basename(command[0])
    return name if name in TRANSLATIONS else "process"


def translated(command: Sequence[str], grants: Sequence[Grant], group: str, binding: Binding = NO_BINDING
               ) -> tuple[list[str], Mapping[str, str]]:
    """Return a command with the devices, and variables for its environment. Pure.

    :param group: control group below which a container tool creates its own
    :param binding: cores and memory nodes of a container; other commands inherit those of this process
    :raises SpecError: the command cannot be given devices
    """
    return TRANSLATIONS.get(runtime(command), process.translate)(command, grants, group, binding)


def chosen(inventory: Inventory, host: Host, held: Collection[str], wanted: Wanted) -> tuple[str, ...]:
    """Return the ids of free devices, near each other.

    :param held: ids of allocated devices
    :raises NoPlacement, DeviceNotFound: the host has too few free devices, or not that one
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


class _Terminated(Exception):
    """Signal that this process received a second SIGTERM."""


class _Signals:
    """Forward signals to the command: no signal ends this process before its devices are clean."""

    def __init__(self) -> None:
        self.ended = False
        self._command: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        self._terminated = False

    def __enter__(self) -> Self:
        self._former = {number: signal.signal(number, self._take) for number in (*FORWARDED, *KEPT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def pass_to(self, command: subprocess.Popen[bytes]) -> None:
        self._command = command
        for number in self._early:
            command.send_signal(number)

    def _take(self, number: int, _: FrameType | None) -> None:
        if self.ended or number not in FORWARDED:
            return
        if self._command is None:
            self._early.append(number)
        else:
            self._command.send_signal(number)
        if number == signal.SIGTERM:
            if self._terminated:
                raise _Terminated
            self._terminated = True


class Runner:
    """Run commands with devices. For root.

    :param allocator: whose records the store has
    :param taken: returns the exclusive cores of the engines' containers
    """

    def __init__(self, store: AllocationStore, allocator: DeviceAllocator, host: Host,
                 taken: Callable[[], frozenset[int]] = frozenset) -> None:
        self._taken = taken
        self._store = store
        self._allocator = allocator
        self._host = host

    def run(self, command: Sequence[str], wanted: Wanted) -> int:
        """Run a command, wait for its end, end its remaining processes, and release its devices.

        :returns: its exit status; 128 plus the signal's number if a signal ended it, as in shells
        :raises SpecError, DeviceError: it cannot have the devices; nothing was changed
        :raises HostActionFailed: the command cannot be started; its devices were released
        """
        self.recover()
        name = str(uuid.uuid4())
        consumer = Consumer(rungroup.DRIVER, runtime(command), rungroup.supervisor(), name)
        group = RunGroup(name)
        if wanted.ranks:
            command = mpi.command_of_rank(command, runtime(command))
        translated(command, (), group.path)  # refuses what cannot be translated before anything changes
        _refuse(command, wanted)
        shares = self._acquired(wanted, consumer)
        with _Signals() as signals:
            try:
                group.enter()
                _raise_limits(itertools.chain(*shares))
                bindings = self._bound(wanted, shares)
                ranks = [(*translated(command, grants, group.path, binding), binding.cores)
                         for grants, binding in zip(shares, bindings, strict=True)]
                with _commands(ranks, wanted) as (words, variables):
                    return _supervised(words, variables, wanted.user, signals)
            except _Terminated:  # ends remaining processes
                return 128 + signal.SIGTERM
            finally:
                signals.ended = True
                group.end()
                for complaint in self._allocator.release(consumer):
                    LOG.error("%s", complaint)

    def _bound(self, wanted: Wanted, shares: Sequence[Iterable[Grant]]) -> list[Binding]:
        """Bind this process and its children to free cores and memory nodes near its devices.

        :raises UnsupportedOnHost: the host has not enough free cores where the affinity needs them
        """
        if not wanted.cores:
            return [NO_BINDING] * len(shares)
        bindings = list[Binding]()
        allowed = os.sched_getaffinity(0) - id_list(self._host.text("/sys/devices/system/cpu/isolated"))
        with FileLock(self._store.directory / corebinding.LOCK, corebinding.TIMEOUT).held(EngineBusy):
            processors, taken = topology.read(self._host), self._taken() | rungroup.cores()
            for grants in shares:
                near = tuple(grant.device.numa_node for grant in grants if grant.device.numa_node is not None)
                bindings.append(affinity.place(processors, allowed, taken,
                                               affinity.Request(wanted.affinity, wanted.cores, None, near)))
                taken |= bindings[-1].cores
            if cores := frozenset[int]().union(*(binding.cores for binding in bindings)):
                os.sched_setaffinity(0, cores)
        memorypolicy.bind(frozenset[int]().union(*(binding.nodes for binding in bindings)))
        return bindings

    def recover(self) -> None:
        """Release the devices of killed runs."""
        for complaint in self._allocator.reconciler.reconcile_runs():
            LOG.warning("%s", complaint)

    def _acquired(self, wanted: Wanted, consumer: Consumer) -> list[tuple[Grant, ...]]:
        """Choose and acquire free devices; retry if another consumer takes one meanwhile."""
        for _ in range(TRIES):
            view = self._allocator.view()
            ids, held = list[tuple[str, ...]](), set(self._store.records())
            for _ in range(wanted.ranks or 1):
                ids.append(chosen(view.inventory, self._host, held, wanted))
                held.update(ids[-1])
            try:
                grants = iter(self._allocator.acquire(
                    [Request(name) for name in itertools.chain(*ids)], consumer, view))
                return [tuple(itertools.islice(grants, len(share))) for share in ids]
            except DeviceHeld as error:
                if wanted.devices:
                    raise
                refused = error
        raise refused


def _refuse(command: Sequence[str], wanted: Wanted) -> None:
    """Refuse options that a command cannot be run with.

    :raises SpecError: it cannot be run with them
    """
    if wanted.ranks > 1 and wanted.devices:
        raise SpecError("a device belongs to one rank only: request numbers of GPUs and network functions")
    if wanted.user and runtime(command) == "podman":
        raise SpecError("Podman puts containers into the control group of the run only as root")


@contextlib.contextmanager
def _commands(ranks: Sequence[tuple[Sequence[str], Mapping[str, str], Iterable[int]]], wanted: Wanted
              ) -> Iterator[tuple[Sequence[str], Mapping[str, str]]]:
    """Yield the command that starts all ranks, and its variables; the hostfile exists within the block.

    :param ranks: command, variables and cores of each
    """
    if not wanted.ranks:
        yield ranks[0][:2]
        return
    with tempfile.NamedTemporaryFile("w", prefix="containerhost-hostfile-") as file:
        file.write(mpi.hostfile(wanted.ranks))
        file.flush()
        os.fchmod(file.fileno(), 0o644)  # mpirun runs as the user
        yield mpi.translate(ranks, file.name), mpi.VARIABLES


def _raise_limits(grants: Iterable[Grant]) -> None:
    """Raise the limits of this process and its children to those that the devices need, as Podman's containers do."""
    for name, size in {name: size for grant in grants for name, size in grant.limits.items()}.items():
        limit = processlimits.value(size)
        try:
            resource.setrlimit(processlimits.number_of(name), (limit, limit))
        except (OSError, ValueError) as error:  # root without CAP_SYS_RESOURCE
            LOG.warning("The limit %s stays below %s, which the devices need: %s", name, size, error)


def _supervised(command: Sequence[str], environment: Mapping[str, str], user: pwd.struct_passwd | None,
                signals: _Signals) -> int:
    """Run a command to its end, and return its exit status.

    :raises HostActionFailed: it cannot be started
    """
    tied, variables = list(TIED), os.environ | environment
    if user:
        tied += [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--init-groups"]
        variables |= {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}
    child = programs.start([*tied, "--", *command], f"{command[0]} was not run", env=variables)
    signals.pass_to(child)
    status = child.wait()
    return status if status >= 0 else 128 - status
