# SPDX-License-Identifier: Apache-2.0
"""Plan a job: number of containers, MPI processes in each, affinity and network, by its limiting resource. Pure.

Source: P. Liu, "Convergence of HPC, Big Data and ML applications on containerized infrastructures", PhD thesis, UPC
2023; each advice names its section. The thesis measured Docker, Singularity and Kubernetes with a shared HCA: its
figures do not cover virtual functions and GPUs, and are not applied to them here.
"""

import dataclasses
import enum
import re
from collections.abc import Iterable, Iterator

from hpcplan.affinity import Affinity
from hpcplan.errors import NoPlacement, PlanError

NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
MOST = 1_000_000  # tasks, nodes, cores


class Profile(enum.StrEnum):
    """Name the resources that limit the speed of a job."""

    NETWORK = "network"
    CPU = "cpu"
    MEMORY = "memory"
    CPU_MEMORY = "cpu+memory"
    NETWORK_MEMORY = "network+memory"
    INFERENCE = "inference"


class Policy(enum.StrEnum):
    """Name the number of containers. ``scale``: as few as the profile allows; ``granularity``: one for each task."""

    SCALE = "scale"
    GRANULARITY = "granularity"


class Fabric(enum.StrEnum):
    ETHERNET = "ethernet"
    ROCE = "roce"
    INFINIBAND = "infiniband"


@dataclasses.dataclass(frozen=True, slots=True)
class Nodes:
    """Describe the identical hosts for a job.

    :ivar cores: of a host that containers may have; the thesis keeps 4 of 36 for the host
    """

    count: int
    cores: int
    sockets: int = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Advice:
    """Hold one recommendation for a job, and its source.

    :ivar source: section of the thesis
    """

    text: str
    source: str


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Describe the execution of a job: its containers, their tasks, cores and affinity, with recommendations.

    :ivar nodes: maximum number of hosts of the job, which is its number of task groups
    :ivar containers: the tasks of each container, in the order of ranks
    :ivar cores: of each container
    """

    profile: Profile
    tasks: int
    nodes: int
    containers: tuple[int, ...]
    cores: int
    affinity: Affinity
    advice: tuple[Advice, ...]


def require_name(name: str) -> str:
    """Refuse a name that hosts, files or clouds do not accept.

    :raises PlanError: it is invalid
    """
    if not NAME.fullmatch(name):
        raise PlanError(f"name {name[:60]!r} must be 1 to 40 lower-case letters, digits and hyphens, and begin with a "
                        "letter")
    return name


def plan(tasks: int, profile: Profile, nodes: Nodes, policy: Policy | None = None, *, containers: int | None = None,
         fabric: Fabric | None = None, ranks_per_core: int = 1) -> Plan:
    """Return the plan of a job: algorithm 2 (section 6.3.1) and further recommendations.

    :param containers: their number, in place of a policy
    :param fabric: network of the hosts; None gives the advice for each
    :param ranks_per_core: more than 1 over-subscribes cores on purpose
    :raises PlanError: a number is out of range, or neither or both of ``policy`` and ``containers`` are given
    :raises NoPlacement: there are fewer cores than the tasks need; the message shows the arithmetic
    """
    _require_numbers(tasks=tasks, nodes=nodes.count, cores=nodes.cores, sockets=nodes.sockets,
                     containers=1 if containers is None else containers, ranks_per_core=ranks_per_core)
    _require_room(tasks, nodes, ranks_per_core)
    if (policy is None) == (containers is None):
        raise PlanError("give either a policy (scale or granularity) or the number of containers")
    if containers is not None and containers > tasks:
        raise PlanError(f"{containers} containers for {tasks} tasks: a container has at least one task; request at "
                        f"most {tasks} containers")
    slots = nodes.cores * ranks_per_core
    used, count = _numbers(tasks, profile, policy, nodes, slots)
    if containers is not None:
        used, count = min(used, containers), containers
    tasks_of = tuple(tasks // count + (at < tasks % count) for at in range(count))
    cores = -(-tasks_of[0] // ranks_per_core)
    affinities = list(_affinities(profile, cores, nodes, ranks_per_core))
    # All containers have one flavor; sizes of groups differ by one at most.
    while (affinity := _fitting(affinities, cores, nodes, -(-count // used))) is None:
        if used == min(nodes.count, count):
            raise NoPlacement(_refusal(tasks_of[0], cores, count, used, nodes))
        used += 1
    found = Plan(profile, tasks, used, tasks_of, cores, affinity, ())
    return dataclasses.replace(found, advice=(
        *_granularity(found, policy, nodes), *_binding(found, nodes, ranks_per_core), *_network(fabric),
        *_always(found)))


def _require_numbers(**numbers: int) -> None:
    for name, number in numbers.items():
        if not 1 <= number <= MOST:
            raise PlanError(f"{name}={number} must be a whole number from 1 to {MOST}")
    if numbers["sockets"] > numbers["cores"]:
        raise PlanError(f"sockets={numbers['sockets']} is more than cores={numbers['cores']}: give the cores of a "
                        "whole node")


def _require_room(tasks: int, nodes: Nodes, ranks_per_core: int) -> None:
    room = nodes.count * nodes.cores * ranks_per_core
    if tasks > room:
        raise NoPlacement(f"{tasks} tasks are more than {nodes.count} nodes of {nodes.cores} cores have room for "
                          f"({nodes.count} * {nodes.cores} * {ranks_per_core} = {room}): request fewer tasks or more "
                          "nodes, or over-subscribe the cores by --ranks-per-core")


def _numbers(tasks: int, profile: Profile, policy: Policy | None, nodes: Nodes, slots: int) -> tuple[int, int]:
    """Return the number of nodes and of containers."""
    fewest = -(-tasks // slots)
    if profile is Profile.NETWORK_MEMORY:
        # Use as few sockets as possible; if there are not enough, plan as for the network profile.
        sockets = -(-tasks * nodes.cores // (max(1, nodes.cores // nodes.sockets) * slots))
        used = -(-sockets // nodes.sockets)
        if used <= nodes.count:
            return used, sockets
    if profile in (Profile.NETWORK, Profile.NETWORK_MEMORY):
        # One container; for a job larger than a node, one container for each node.
        return fewest, fewest
    used = min(nodes.count, tasks)
    if policy is Policy.GRANULARITY:
        return used, tasks
    if profile is Profile.INFERENCE:
        return used, min(tasks, used * nodes.sockets)
    return used, used


def _affinities(profile: Profile, cores: int, nodes: Nodes, ranks_per_core: int) -> Iterator[Affinity]:
    """Yield the affinities of a container, best first: one socket if it fits, otherwise a share of each.

    The shares are equal, so that they take at least one core of each socket."""
    on_socket, on_all = cores <= nodes.cores // nodes.sockets, cores >= nodes.sockets
    if on_all and profile is Profile.MEMORY and nodes.sockets > 1:
        yield Affinity.CPU
    if on_socket:
        pinned = profile in (Profile.CPU, Profile.CPU_MEMORY) or ranks_per_core > 1
        yield Affinity.CPUMEMPIN if pinned else Affinity.CPUMEM
    if on_all:
        yield Affinity.CPU
    if not (on_socket or on_all):
        yield Affinity.ANY


def _fitting(affinities: Iterable[Affinity], cores: int, nodes: Nodes, count: int) -> Affinity | None:
    """Return the first affinity with which this many containers fit on a host.

    :func:`containerhost.engines.affinity.place` places them one after the other."""
    on_sockets = _room_on_sockets(cores, nodes)
    return next((affinity for affinity in affinities if count <= (
        on_sockets if affinity in (Affinity.CPUMEM, Affinity.CPUMEMPIN) else nodes.cores // cores)), None)


def _room_on_sockets(cores: int, nodes: Nodes) -> int:
    """Return how many containers fit on a host if each is on one socket. Sockets are as equal as possible."""
    size, larger = divmod(nodes.cores, nodes.sockets)
    return larger * ((size + 1) // cores) + (nodes.sockets - larger) * (size // cores)


def _refusal(tasks: int, cores: int, count: int, used: int, nodes: Nodes) -> str:
    on_node = -(-count // used)
    remedy = "ask for more nodes, or for a number of containers that divides nodes and tasks"
    if on_node * cores > nodes.cores:
        return (f"{count} containers of {tasks} tasks, {cores} cores each, on {used} nodes need {on_node * cores} "
                f"cores of one, which has {nodes.cores}: {remedy}")
    return (f"{on_node} containers of {cores} cores on one node, whose {nodes.sockets} sockets of "
            f"{nodes.cores // nodes.sockets} cores have room for {_room_on_sockets(cores, nodes)}, and which are too "
            f"small to be spread over all sockets: {remedy}")


def _granularity(found: Plan, policy: Policy | None, nodes: Nodes) -> Iterator[Advice]:
    match found.profile:
        case Profile.NETWORK:
            yield Advice("network-bound: one container on each node, on as few nodes as possible", "6.3.1, 6.5")
            if found.cores <= nodes.cores // nodes.sockets:
                yield Advice("many small messages: one container on one socket", "3.3.4")
        case Profile.CPU:
            yield Advice("CPU-bound: one rank in each container (policy granularity) is best", "3.3.4, 6.4.2")
        case Profile.MEMORY | Profile.CPU_MEMORY:
            yield Advice("bound by memory bandwidth: spread over sockets and nodes", "6.4.3")
        case Profile.NETWORK_MEMORY:
            yield Advice("network and memory over RDMA (FFT): one container on each socket; a finer split without "
                         "affinity costs about 8 %", "3.5.4")
        case Profile.INFERENCE if policy is Policy.GRANULARITY:
            yield Advice("inference under high load: smaller containers, each within a socket", "4.3")
        case Profile.INFERENCE:
            yield Advice("inference, one stream: one container on each socket", "4.3")


def _binding(found: Plan, nodes: Nodes, ranks_per_core: int) -> Iterator[Advice]:
    match found.affinity:
        case Affinity.CPU:
            yield Advice("affinity cpu: an equal share of every socket, because a container is larger than one, needs "
                         "the bandwidth of all, or single sockets have no room for all containers", "3.4.2")
        case Affinity.ANY:
            yield Advice("affinity any: a container is larger than a socket and has no core on each; with as many "
                         "cores as sockets it could have affinity cpu", "3.4.2")
        case Affinity.CPUMEMPIN:
            yield Advice("affinity cpumempin: cores and memory of one socket, each rank on its core: mpirun --map-by "
                         "core --bind-to core", "3.4.2")
        case _:
            yield Advice("affinity cpumem: cores and memory of one socket", "3.4.2")
    on_node = -(-len(found.containers) // found.nodes)
    if (found.profile in (Profile.MEMORY, Profile.CPU_MEMORY, Profile.INFERENCE) and found.affinity is not Affinity.CPU
            and on_node > 1 and on_node * found.cores < nodes.cores):
        yield Advice("these containers leave cores of a host free, and a host fills one socket before the next: for "
                     "the memory bandwidth of all sockets take containers of as many cores as sockets, or more, with "
                     "affinity cpu", "3.4.2, 6.4.3")
    if ranks_per_core > 1:
        yield Advice(f"over-subscribed by {ranks_per_core} ranks to a core: pin each rank; without, cpu is better than "
                     "cpumem, and that than any; set mpi_yield_when_idle", "3.3.4, 3.4.4")


def _network(fabric: Fabric | None) -> Iterator[Advice]:
    if fabric in (None, Fabric.ETHERNET):
        yield Advice("Ethernet: the host's network or macvlan is near bare metal, an overlay is not", "3.5.3")
    if fabric in (None, Fabric.ROCE):
        yield Advice("RoCE: an overlay is enough where the data goes by RDMA", "3.5.3, 3.5.4")
    if fabric in (None, Fabric.INFINIBAND):
        yield Advice("InfiniBand: macvlan does not work on it; give each container a function of the HCA, and an "
                     "overlay for start and control", "3.5.3, 3.5.4")


def _always(found: Plan) -> Iterator[Advice]:
    yield Advice(f"as many threads in a container as it has cores: {found.cores}", "4.3.2")
    if len(found.containers) > found.nodes:
        yield Advice("several containers of the job on a node: shared memory between them (hpc:shared_memory) would "
                     "avoid what the split costs; not measured", "3.3.5")
