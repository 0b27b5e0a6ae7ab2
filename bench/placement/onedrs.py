# SPDX-License-Identifier: Apache-2.0
"""Compare this project's placement with OpenNebula's OneDRS, an integer program, on equal instances.

Both pack: OneDRS minimizes the number of hosts in use (its policy PACK), with 1.1 for each VM that it leaves pending.
"""

import dataclasses
import importlib
import itertools
import pathlib
import random
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from hpcplan import taskgroups
from hpcplan.errors import NoPlacement

HOST_CORES, HOST_MEMORY = 64, 256
PENDING_PENALTY = 1.1
LIBRARY = "src/schedm_mad/remotes/one_drs/lib"


class Vm(NamedTuple):
    """A VM to be placed: cores and memory."""

    cores: int
    memory: int


@dataclasses.dataclass(frozen=True)
class Row:
    """One instance: objective and seconds of each, the lower bound of the objective, and whether OneDRS proved its own.

    :ivar kind: "job" is one job of equal VMs on hosts that are partly in use, "mixed" is many jobs of one VM
    """

    kind: str
    hosts: int
    vms: int
    bound: int
    ours: float
    ours_seconds: float
    onedrs: float | None
    onedrs_seconds: float
    proved: bool


@dataclasses.dataclass(frozen=True)
class Instance:
    """VMs to be placed, and the cores in use on each host; memory is in use in the same proportion."""

    used: Sequence[int]
    vms: Sequence[Vm]

    def free(self, host: int) -> dict[str, int]:
        """Return what is free on a host."""
        cores = HOST_CORES - self.used[host]
        return {"cores": cores, "memory": cores * HOST_MEMORY // HOST_CORES}


def job(hosts: int, seed: int) -> Instance:
    """Return a job of equal VMs that takes half of what is free on hosts of different load."""
    chance = random.Random(seed)
    used = [chance.randrange(0, HOST_CORES, 2) for _ in range(hosts)]
    vm = Vm(4, 16)
    return Instance(used, [vm] * (sum((HOST_CORES - cores) // vm.cores for cores in used) // 2))


def mixed(hosts: int, seed: int, load: float = 0.7) -> Instance:
    """Return VMs of many sizes that ask for this part of the cores or of the memory of empty hosts."""
    chance = random.Random(seed)
    vms: list[Vm] = []
    while True:
        found = [*vms, Vm(chance.choice((1, 2, 4, 8, 16)), chance.choice((4, 8, 16, 32, 64)))]
        if (sum(vm.cores for vm in found) > load * hosts * HOST_CORES
                or sum(vm.memory for vm in found) > load * hosts * HOST_MEMORY):
            return Instance([0] * hosts, vms)
        vms = found


def bound(instance: Instance) -> int:
    """Return how many hosts are needed at least, by cores and by memory, if VMs could be split."""
    found = 0
    for name, demand in taskgroups.total(vm._asdict() for vm in instance.vms).items():
        free = sorted((instance.free(host)[name] for host in range(len(instance.used))), reverse=True)
        for count, most in enumerate(itertools.accumulate(free), start=1):
            if most >= demand:
                found = max(found, count)
                break
    return found


def ours(instance: Instance) -> tuple[float, float]:
    """Return the objective of ``taskgroups.place`` and its seconds.

    A job is placed on the fewest hosts that have room for it. VMs of different size are jobs of one member, the largest
    first; hosts in use are offered before one empty host, because all empty ones are equal.
    """
    begin = time.perf_counter()
    free = [instance.free(host) for host in range(len(instance.used))]
    if len(set(instance.vms)) == 1:
        members = [taskgroups.Member(rank, 0, vm._asdict()) for rank, vm in enumerate(instance.vms)]
        room = sorted((taskgroups.fits(each, members[0].request) for each in free), reverse=True)
        fewest = next(count for count, most in enumerate(itertools.accumulate(room), start=1) if most >= len(members))
        hosts = [taskgroups.Host(str(at), each) for at, each in enumerate(free)]
        used = len(set(taskgroups.place(members, hosts, fewest).values()))
        return float(used), time.perf_counter() - begin
    used, pending = 0, 0
    for vm in sorted(instance.vms, key=lambda vm: -max(vm.cores / HOST_CORES, vm.memory / HOST_MEMORY)):
        offered = [taskgroups.Host(str(at), free[at]) for at in range(min(len(free), used + 1))]
        try:
            at = int(taskgroups.place([taskgroups.Member(0, 0, vm._asdict())], offered, 1)[0])
        except NoPlacement:
            pending += 1
            continue
        used = max(used, at + 1)
        for name, amount in vm._asdict().items():
            free[at][name] -= amount
    return used + PENDING_PENALTY * pending, time.perf_counter() - begin


def onedrs(directory: pathlib.Path, instance: Instance, limit: float) -> tuple[float | None, float, bool]:
    """Return the objective of OneDRS or None without a solution, its seconds, and whether it is proved to be the least.

    :param directory: a checkout of OpenNebula
    :param limit: seconds for its solver, CBC; building the model comes on top
    """
    optimizer, model, pulp = _load(directory)
    begin = time.perf_counter()
    capacities = [model.HostCapacity(at, model.Capacity(instance.free(at)["memory"], 0),
                                     model.Capacity(float(instance.free(at)["cores"]), 0))
                  for at in range(len(instance.used))]
    requests = [model.VMRequirements(at, model.VMState.PENDING, vm.memory, float(vm.cores))
                for at, vm in enumerate(instance.vms)]
    found = optimizer.ILPOptimizer([], requests, [], capacities, [], [], [], "pack",
                                   solver=pulp.PULP_CBC_CMD(msg=False, timeLimit=limit))
    found.map()
    seconds = time.perf_counter() - begin
    placement = found._opt_placement
    if not placement:
        return None, seconds, False
    pending = sum(1 for host in placement.values() if host is None)
    used = len({host.host_id for host in placement.values() if host is not None})
    return used + PENDING_PENALTY * pending, seconds, found._model.sol_status == pulp.LpSolutionOptimal


def _load(directory: pathlib.Path) -> tuple[Any, Any, Any]:
    library = directory / LIBRARY
    if not (library / "mapper/ilp_optimizer.py").is_file():
        raise ValueError(f"{library} has no mapper/ilp_optimizer.py: --onedrs is a checkout of OpenNebula 7.0 or later")
    if str(library) not in sys.path:
        sys.path.insert(0, str(library))
    return (importlib.import_module("mapper.ilp_optimizer"), importlib.import_module("mapper.model"),
            importlib.import_module("pulp"))


def compare(directory: pathlib.Path, sizes: Sequence[int], seed: int, limit: float) -> Iterator[Row]:
    """Yield a row for each kind of instance and number of hosts."""
    for kind, make in (("job", job), ("mixed", mixed)):
        for hosts in sizes:
            instance = make(hosts, seed)
            objective, seconds = ours(instance)
            theirs, theirs_seconds, proved = onedrs(directory, instance, limit)
            yield Row(kind, hosts, len(instance.vms), bound(instance), objective, seconds, theirs, theirs_seconds,
                      proved)


def table(rows: Sequence[Row]) -> str:
    """Return the comparison as a table of the manual."""
    lines = ["| VMs of | hosts | VMs | bound | ours | time | OneDRS | time | |",
             "|---|---:|---:|---:|---:|---:|---:|---:|---|"]
    lines += [f"| {row.kind} | {row.hosts} | {row.vms} | {row.bound} | {row.ours:g} | "
              f"{1000 * row.ours_seconds:.0f} ms | {'none' if row.onedrs is None else format(row.onedrs, 'g')} | "
              f"{row.onedrs_seconds:.1f} s | "
              f"{'proved' if row.proved else 'time limit'} |" for row in rows]
    return "\n".join(lines)
