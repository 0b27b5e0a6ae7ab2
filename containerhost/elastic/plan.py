# SPDX-License-Identifier: Apache-2.0
"""Decide the target size of each opted-in container, and which part can be applied now. Pure."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from containerhost.elastic import corechoice, policies
from containerhost.elastic.corechoice import Cores, Share
from containerhost.elastic.policies import Demand, Policy, Pool
from containerhost.engines.bounds import Bounds
from containerhost.engines.capabilities import Size
from containerhost.guest import resources

UNIT = 64 << 20  # bytes; the smallest change of memory
BAND = 16  # a change of memory is at least this fraction of the maximum
HEADROOM = 8  # fraction of the memory in use that stays free in addition


@dataclasses.dataclass(frozen=True)
class Running:
    """Describe a running container that opted in.

    :ivar key: engine and name, ``lxd/c1``
    :ivar mark: its bounds, as they are written
    :ivar document: of its resources, as the driver or this service wrote it; None if there is none yet
    """

    key: str
    name: str
    pid: int
    bounds: Any
    mark: str
    document: str | None

    @property
    def generation(self) -> int:
        return resources.generation(resources.parse(self.document))

    def told(self, key: str) -> Any:
        """Return the size that its document states."""
        return (resources.parse(self.document) or {}).get(key)


@dataclasses.dataclass(frozen=True)
class Member(Running):
    """Describe a container whose size may change.

    :ivar used: busy cores in the last rounds
    :ivar pressure: per cent of the time in which a process waited for a core; None where it is not known
    :ivar memory_used: bytes that its processes need; None if unknown
    """

    bounds: Bounds
    used: tuple[float, ...] = ()
    pressure: float | None = None
    memory_used: int | None = None

    @property
    def cores(self) -> Cores:
        """Return the cores that it is bound to; none if the engine chooses."""
        found = self.told("cpus")
        cores = found.get("cores") if isinstance(found, dict) else None
        return frozenset(core for core in cores if type(core) is int) if isinstance(cores, list) else frozenset()

    @property
    def count(self) -> int:
        return len(self.cores) or self.bounds.cores.most

    @property
    def memory(self) -> int:
        found = self.told("memory")
        return found if type(found) is int and found > 0 else self.bounds.memory.most

    def coming(self, size: Size) -> str:
        """Return its document with another size."""
        return resources.resized(self.document, len(size.cores), size.cores, size.memory)

    def loses(self, size: Size) -> bool:
        return (len(size.cores) < self.count or not self.cores <= size.cores or size.memory < self.memory)


@dataclasses.dataclass(frozen=True)
class Capacity:
    """Describe the host's capacity for the containers that opted in.

    :ivar cores: online, and not dedicated
    :ivar hardware: the host's hardware cores with their NUMA nodes, each as its threads
    :ivar memory: bytes, those of fixed sizes included
    """

    cores: Cores
    hardware: tuple[tuple[int, Cores], ...]
    memory: int


def sizes(members: Sequence[Member], capacity: Capacity, policy: Policy) -> dict[str, Size]:
    """Return the final target size of each container.

    A container without a remaining permitted core shares its present cores with the others.
    """
    online = frozenset[int]().union(*(threads for _, threads in capacity.hardware))
    permitted = {member.key: (capacity.cores & member.bounds.choice if member.bounds.choice else capacity.cores)
                 or member.cores & online for member in members}
    members = [member for member in members if permitted[member.key]]
    counts = policy(corechoice.Supply({member.key: permitted[member.key] for member in members}), [Demand(
        member.key, member.bounds.cores.least, member.bounds.cores.most, member.count, member.bounds.priority,
        policies.cores_needed(member.count, member.used, member.pressure)) for member in members])
    cores = corechoice.choose([Share(member.key, counts[member.key], permitted[member.key], member.cores)
                               for member in members], capacity.hardware,
                              {member.key: member.bounds.cores.least for member in members})
    memories = _memories(members, capacity.memory, policy)
    return {member.key: Size(cores[member.key], memories[member.key]) for member in members}


def _memories(members: Sequence[Member], capacity: int, policy: Policy) -> dict[str, int]:
    """Return the target memory of each container; fixed sizes stay."""
    found = {member.key: member.memory for member in members}
    moving = [member for member in members if not member.bounds.memory.is_fixed]
    fixed = sum(member.memory for member in members if member.bounds.memory.is_fixed)
    amounts = policy(Pool((capacity - fixed) // UNIT), [_memory_demand(member) for member in moving])
    for member in moving:
        wanted = max(member.bounds.memory.least, min(member.bounds.memory.most, amounts[member.key] * UNIT))
        band = max(UNIT, member.bounds.memory.most // BAND)
        if abs(wanted - member.memory) >= band or (wanted == member.bounds.memory.most):
            found[member.key] = wanted
    return found


def _memory_demand(member: Member) -> Demand:
    """Return the memory demand in units: what its processes need, or all its memory if that is unknown."""
    most, present = _units(member.bounds.memory.most), _units(member.memory)
    needed = present if (used := member.memory_used) is None else _units(used + used // HEADROOM)
    least = min(most, max(_units(member.bounds.memory.least), min(needed, present)))
    return Demand(member.key, least, most, present, member.bounds.priority, needed)


def _units(size: int) -> int:
    return -(-size // UNIT)


def possible(member: Member, wanted: Size, leaving: Cores, memory_free: int) -> Size | None:
    """Return a container's next size towards the target; None if it waits for others, or has reached it.

    :param leaving: cores that others still have, or were promised, and will lose
    :param memory_free: unallocated bytes
    """
    # After a change during a freeze two containers may share a core: each may keep it, else they would wait for each
    # other.
    cores = wanted.cores - (leaving - member.cores)
    more, free = wanted.memory - member.memory, max(0, memory_free)
    memory = member.memory + (more if more <= free else free // UNIT * UNIT)
    if len(cores) < member.bounds.cores.least and len(cores) < len(wanted.cores):
        cores = member.cores
    if not cores or (cores == member.cores and memory == member.memory):
        return None
    return Size(cores, memory)
