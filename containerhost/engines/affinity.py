# SPDX-License-Identifier: Apache-2.0
"""Choose the cores and memory nodes of a container by its affinity: the affinity map of one host. Pure.

Source of the four kinds: P. Liu, "Convergence of HPC, Big Data and ML applications on containerized
infrastructures", PhD thesis, UPC 2023, section 3.4.2. Its formulas number cores ``socket * cores + n``, and hold
where the containers of a host are equal and a multiple of its sockets. Here the host's own topology is used,
whatever its core ids; containers come one by one, and hardware threads of a core stay together. A *core* is a CPU as
the kernel numbers it, in this project's whole interface; a hardware core is the set of its threads.
"""

import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from containerhost.errors import SpecError, UnsupportedOnHost
from hpcplan.affinity import Affinity

if TYPE_CHECKING:
    from containerhost.inventory.topology import Topology


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """Hold the criteria by which the cores and NUMA nodes of one container are chosen.

    :ivar ranks: MPI processes of the container, for ``cpumempin``; None is one for each core
    :ivar near: NUMA nodes of its devices, one entry for each device
    """

    affinity: Affinity
    count: int
    ranks: int | None = None
    near: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Binding:
    """Name the cores and NUMA nodes that one container is bound to.

    :ivar nodes: those its memory must come from; empty is every node
    :ivar ranks: the cores of each rank, for ``cpumempin``
    """

    cores: frozenset[int] = frozenset()
    nodes: frozenset[int] = frozenset()
    ranks: tuple[frozenset[int], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class _Domain:
    """Hold a NUMA node or a socket, with its allowed cores as hardware cores."""

    name: str
    nodes: frozenset[int]
    hardware: tuple[frozenset[int], ...]

    @property
    def cores(self) -> frozenset[int]:
        return frozenset[int]().union(*self.hardware)


def parse(text: str, key: str) -> Affinity:
    """Return the affinity of that name.

    :param key: the flavor key or attribute, for the message
    :raises SpecError: there is no such affinity
    """
    try:
        return Affinity(text.strip().lower())
    except ValueError as error:
        raise SpecError(f"{key} is {text[:60]!r}, but must be one of {', '.join(Affinity)}") from error


def place(topology: "Topology", allowed: Collection[int], taken: Collection[int], request: Request) -> Binding:
    """Return the binding of one more container.

    Deterministic. Containers that are placed one after the other, each with the cores of those before in ``taken``,
    have no core in common.

    :param allowed: cores that containers may have: online, not isolated by the kernel, not reserved for the host
    :param taken: cores that other containers have for themselves
    :raises SpecError: ``count`` or ``ranks`` is less than 1
    :raises UnsupportedOnHost: the host lacks that many free cores where the affinity needs them; the message shows
        the arithmetic
    """
    ranks = request.count if request.ranks is None else request.ranks
    if request.count < 1 or ranks < 1:
        raise SpecError(f"affinity {request.affinity}: requested {request.count} cores for {ranks} ranks; request at "
                        "least 1 of each")
    if request.affinity is Affinity.ANY:
        return Binding()
    free = frozenset(allowed) - frozenset(taken)
    nodes = _nodes(topology, frozenset(allowed))
    if request.affinity is Affinity.CPU:
        return Binding(_spread(_sockets(topology, nodes), free, request))
    cores = _together(nodes, _sockets(topology, nodes), free, request)
    memory = memory_nodes(topology, cores)
    if request.affinity is Affinity.CPUMEM:
        return Binding(cores, memory)
    return Binding(cores, memory, bind_ranks(topology, cores, ranks))


def rebind(topology: "Topology", allowed: Collection[int], others: Collection[int], request: Request,
           present: Collection[int], former: Collection[int] = ()) -> Binding:
    """Return the binding of a container that already has cores: its own or fewer, or new ones on its node.

    It keeps those it has if they meet the request. Of its devices' nodes it gets new ones where that brings it nearer
    to more of them.

    :param others: cores that other containers have for themselves
    :param present: cores that it has; none for a new container
    :param former: cores that it had and that are reserved for it: taken where those that it has do not meet the request
    :raises SpecError, UnsupportedOnHost: as :func:`place`
    """
    kept = frozenset(present) & frozenset(allowed) - frozenset(others)
    found = None
    for own in (kept, frozenset(former) & frozenset(allowed) - frozenset(others)):
        if not found and request.affinity is not Affinity.ANY and len(own) >= request.count:
            with contextlib.suppress(UnsupportedOnHost):
                found = place(topology, allowed, frozenset(allowed) - own, request)
    if found and (not request.near or request.affinity is Affinity.CPU):
        return found
    home = tuple(node.id for node in topology.nodes if node.cpus & kept)
    # Each of its devices has more weight than the location of the process.
    new = place(topology, allowed, others, dataclasses.replace(request, near=request.near * (len(home) + 1) + home))
    return (found if found and _nearness(topology, found, request.near) >= _nearness(topology, new, request.near)
            else new)


def _nearness(topology: "Topology", binding: Binding, near: Collection[int]) -> int:
    """Return how many devices are on a node of the binding's cores."""
    nodes = {node.id for node in topology.nodes if node.cpus & binding.cores}
    return sum(node in nodes for node in near)


def memory_nodes(topology: "Topology", cores: Collection[int]) -> frozenset[int]:
    """Return the memory nodes of cores."""
    return topology.memory_of(node.id for node in topology.nodes if node.cpus & frozenset(cores))


def bind_ranks(topology: "Topology", cores: Collection[int], ranks: int) -> tuple[frozenset[int], ...]:
    """Return the cores of each rank: successive hardware cores, as many for each rank as possible.

    More ranks than hardware cores get hardware threads; more than threads share one with their neighbours."""
    units: Sequence[frozenset[int]] = _hardware(topology, frozenset(cores))
    if ranks > len(units):
        units = [frozenset((core,)) for unit in units for core in sorted(unit)]
    bound = []
    for rank in range(ranks):
        first, last = rank * len(units) // ranks, (rank + 1) * len(units) // ranks
        bound.append(frozenset[int]().union(*units[first:max(first + 1, last)]))
    return tuple(bound)


def _hardware(topology: "Topology", cores: frozenset[int]) -> list[frozenset[int]]:
    """Group ``cores`` into hardware cores, sorted by lowest thread."""
    found = (core & cores for node in topology.nodes for core in node.siblings)
    return sorted((core for core in found if core), key=min)


def _nodes(topology: "Topology", allowed: frozenset[int]) -> list[_Domain]:
    """Return the NUMA nodes with allowed cores."""
    found = (_Domain(f"NUMA node {node.id}", frozenset((node.id,)),
                     tuple(core & allowed for core in node.siblings if core & allowed)) for node in topology.nodes)
    return [domain for domain in found if domain.hardware]


def _sockets(topology: "Topology", nodes: Iterable[_Domain]) -> list[_Domain]:
    """Return the sockets with allowed cores. A node that spans sockets, or whose socket is unknown, counts as one."""
    socket_of = {node.id: node.socket for node in topology.nodes}
    by_socket: dict[str, list[_Domain]] = {}
    for domain in nodes:
        socket = socket_of[min(domain.nodes)]
        by_socket.setdefault(domain.name if socket is None else f"socket {socket}", []).append(domain)
    return [_Domain(name, frozenset[int]().union(*(domain.nodes for domain in of)),
                    tuple(core for domain in of for core in domain.hardware)) for name, of in by_socket.items()]


def _together(nodes: Sequence[_Domain], sockets: Sequence[_Domain], free: frozenset[int], request: Request
              ) -> frozenset[int]:
    """Return cores of one NUMA node, or else of one socket: that of most of the devices, then by best fit."""
    for domains in (nodes, sockets):
        fitting = [domain for domain in domains if len(domain.cores & free) >= request.count]
        if fitting:
            best = min(fitting, key=lambda domain: (-sum(node in domain.nodes for node in request.near),
                                                    len(domain.cores & free), min(domain.nodes)))
            return _take(best, free, request.count)
    raise UnsupportedOnHost(f"affinity {request.affinity}: requested {request.count} cores on one socket; "
                            f"{_arithmetic(sockets, free)}. Request fewer cores, affinity cpu, which uses every "
                            "socket, or another host")


def _spread(sockets: Sequence[_Domain], free: frozenset[int], request: Request) -> frozenset[int]:
    """Return an equal share of every socket; the remainder comes from those with the most free cores."""
    shares = _shares(sockets, free, request.count)
    if min(shares.values(), default=0) < 1 or any(len(socket.cores & free) < shares[socket.name] for socket in sockets):
        parts = "+".join(map(str, shares.values())) or "nothing"
        raise UnsupportedOnHost(f"affinity cpu: requested {request.count} cores as an equal share of every socket "
                                f"({parts}); {_arithmetic(sockets, free)}. Request no more than each has and at least "
                                "one of each, affinity cpumem, which uses one socket, or another host")
    return frozenset[int]().union(*(_take(socket, free, shares[socket.name]) for socket in sockets))


def _shares(sockets: Sequence[_Domain], free: frozenset[int], count: int) -> Mapping[str, int]:
    if not sockets:
        return {}
    share, rest = divmod(count, len(sockets))
    most_free = sorted(sockets, key=lambda socket: (-len(socket.cores & free), min(socket.nodes)))
    larger = {socket.name for socket in most_free[:rest]}
    return {socket.name: share + (socket.name in larger) for socket in sockets}


def _take(domain: _Domain, free: frozenset[int], count: int) -> frozenset[int]:
    """Return ``count`` free cores of a domain that has as many: whole hardware cores first, then shared ones.

    Of whole ones those with the most threads, so that two containers share one only where threads are left over; of
    shared ones the fullest."""
    whole = sorted((core for core in domain.hardware if core <= free), key=lambda core: (-len(core), min(core)))
    shared = sorted((core & free for core in domain.hardware if core & free and not core <= free),
                    key=lambda core: (len(core), min(core)))
    chosen: list[int] = []
    unused = []
    for core in whole:
        if len(core) <= count - len(chosen):
            chosen += core
        else:
            unused.append(core)
    threads = (thread for core in (*shared, *unused) for thread in sorted(core))
    return frozenset(chosen + [thread for thread, _ in zip(threads, range(count - len(chosen)), strict=False)])


def _arithmetic(domains: Sequence[_Domain], free: frozenset[int]) -> str:
    return ", ".join(f"{domain.name} has {len(domain.cores & free)} free of {len(domain.cores)}"
                     for domain in domains) or "the host lets containers use no core"
