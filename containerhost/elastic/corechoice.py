# SPDX-License-Identifier: Apache-2.0
"""Match cores with the containers that may use them. Pure.

The number of a container's cores, and their choice, are bipartite matchings of cores with containers, which grow by
augmenting paths: a core that is matched already passes to another container if the one that has it can have another
core. So a division reaches the maximum for the permitted cores of all, and a core idles only if no container that
could use it may have it.

Sets of cores are masks here: bit N is a core.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

Cores = frozenset[int]


class Share(NamedTuple):
    """Describe a container's part in the division of cores.

    :ivar allowed: those that it may have
    :ivar present: those that it has
    """

    name: str
    size: int
    allowed: Cores
    present: Cores


class Matching:
    """Give cores to takers, each core to one at most.

    :param allowed: by taker, which cores it may have
    """

    def __init__(self, allowed: Sequence[int], held: Sequence[int] | None = None) -> None:
        self.held = list(held) if held is not None else [0] * len(allowed)
        self._allowed = allowed
        self._free = _union(allowed) & ~_union(self.held)
        self._open = set(range(len(allowed)))  # takers that may be able to receive another core

    def free(self, taker: int) -> int:
        """Return the free cores that the taker may have."""
        return self._allowed[taker] & self._free

    def give(self, taker: int, cores: int) -> None:
        """Give a taker some of its free cores."""
        self.held[taker] |= cores
        self._free &= ~cores

    def take(self, taker: int) -> bool:
        """Give a taker one more core by the shortest augmenting path.

        :returns: False if that is impossible, now and after any further calls
        """
        if taker not in self._open:
            return False
        reached: dict[int, tuple[int, int]] = {taker: (taker, 0)}  # next taker on the path, and the core for it
        queue = [taker]
        for at in queue:  # the list grows during the iteration
            if free := self.free(at):
                self._pass_on(at, free & -free, reached)
                return True
            for other in self._open - reached.keys():
                if common := self.held[other] & self._allowed[at]:
                    reached[other] = (at, common & -common)
                    queue.append(other)
        self._open -= reached.keys()  # no free core is in reach of any of them
        return False

    def exchange(self, present: Sequence[int]) -> None:
        """Exchange cores while that returns more of them to the takers that had them before."""
        wanted = [cores & allowed for cores, allowed in zip(present, self._allowed, strict=True)]
        while any(cores & ~held for cores, held in zip(wanted, self.held, strict=True)):
            cycle = self._better([*wanted, 0])
            if not cycle:
                return
            for to, giver, core in cycle:
                for taker in {to, giver} - {len(self.held)}:
                    self.held[taker] ^= core
            self._free = _union(self._allowed) & ~_union(self.held)

    def _better(self, wanted: Sequence[int]) -> list[tuple[int, int, int]]:
        """Return exchanges in a circle that bring more wanted cores to takers than they take away; Bellman and Ford.

        :param wanted: by taker; the last one represents the free cores
        :returns: receiver, giver and core of each; empty if there is none
        """
        held, allowed = [*self.held, self._free], [*self._allowed, _union(self._allowed)]
        gain = [0] * len(held)
        reached: list[tuple[int, int] | None] = [None] * len(held)  # the receiver, and the core that it would get
        for _ in held:
            changed = False
            for to, giver in itertools.permutations(range(len(held)), 2):
                core, more = _best(held[giver] & allowed[to], wanted[to], wanted[giver])
                if core and gain[to] + more > gain[giver]:
                    gain[giver], reached[giver], changed = gain[to] + more, (to, core), True
                    if circle := _circle(reached, giver):
                        return circle
            if not changed:
                break
        return []

    def _pass_on(self, at: int, core: int, reached: Mapping[int, tuple[int, int]]) -> None:
        self.give(at, core)
        while reached[at][0] != at:
            to, passed = reached[at]
            self.held[at] ^= passed
            self.held[to] |= passed
            at = to


class Supply:
    """Count the cores that containers can still get; those with the same permitted cores are counted together."""

    def __init__(self, permitted: Mapping[str, Cores]) -> None:
        sets = list(set(permitted.values()))
        number = {cores: number for number, cores in enumerate(sets)}
        self._taker = {name: number[cores] for name, cores in permitted.items()}
        self._matching = Matching([sum(1 << core for core in cores) for cores in sets])

    def take(self, name: str, count: int) -> int:
        """Take cores for a container.

        :returns: how many it can have in addition to what was taken for it and for others
        """
        return next((had for had in range(count) if not self._matching.take(self._taker[name])), count)


class Hardware:
    """Number the host's CPUs so that those of a core, and cores of a node, follow each other.

    :param hardware: the hardware cores of the host with their NUMA nodes, each as its threads
    :param others: further CPUs, of which nothing is known
    """

    def __init__(self, hardware: Iterable[tuple[int, Cores]], others: Cores) -> None:
        known = sorted(((node, min(core), sorted(core)) for node, core in hardware if core))
        rest = sorted(others.difference(*(core for _, _, core in known)))
        ordered = [(-1, cpu, [cpu]) for cpu in rest] + known
        self._cpus = [cpu for _, _, core in ordered for cpu in core]
        self._bit = {cpu: 1 << place for place, cpu in enumerate(self._cpus)}
        cores = [(node, _union(self._bit[cpu] for cpu in core)) for node, _, core in ordered]
        self._core = [core for _, core in cores for _ in range(core.bit_count())]
        self._nodes = [_union(core for at, core in cores if at == node) for node in sorted({node for node, _ in cores})]
        self._masks: dict[Cores, int] = {}

    def mask(self, cores: Cores) -> int:
        if cores not in self._masks:
            self._masks[cores] = _union(self._bit[core] for core in cores)
        return self._masks[cores]

    def cores(self, mask: int) -> Cores:
        return frozenset(self._cpus[core.bit_length() - 1] for core in _bits(mask))

    def nearest(self, own: int, free: int, count: int) -> int:
        """Return up to ``count`` free CPUs: threads of its own cores, of its node, of the node with most room.

        There whole cores come before parts."""
        taken = self._some(free & _union(self._core[cpu.bit_length() - 1] for cpu in _bits(own)), count)
        for node in sorted(self._nodes, key=lambda node: (not node & own, -(node & free).bit_count())):
            for some in (self._whole, self._some):
                if (missing := count - taken.bit_count()) > 0:
                    taken |= some(node & free & ~taken, missing)
        return taken

    def _whole(self, free: int, count: int) -> int:
        """Return at most ``count`` CPUs from cores whose threads are all free."""
        taken = 0
        while free and taken.bit_count() < count:
            core = self._core[(free & -free).bit_length() - 1]
            if core & free == core:
                taken |= self._some(core, count - taken.bit_count())
            free &= ~core
        return taken

    @staticmethod
    def _some(free: int, count: int) -> int:
        return _union(itertools.islice(_bits(free), max(0, count)))


def choose(shares: Sequence[Share], hardware: Sequence[tuple[int, Cores]], least: Mapping[str, int]
           ) -> dict[str, Cores]:
    """Choose the cores of each container.

    A container keeps its cores as far as its size and the others allow; when it shrinks it keeps whole cores of the
    node where it has most. No two containers share a core, unless there are fewer than the least of all.

    :param hardware: the hardware cores of the host with their NUMA nodes, each as its threads
    :param least: cores below which a container shares some rather than having fewer
    """
    shares = sorted(shares, key=lambda share: (len(share.allowed), share.name))
    host = Hardware(hardware, frozenset[int]().union(*(share.allowed for share in shares)))
    allowed = [host.mask(share.allowed) for share in shares]
    kept = Matching([host.mask(share.present & share.allowed) for share in shares])
    for number, share in enumerate(shares):
        _fill(kept, number, host.nearest(0, kept.free(number), share.size), share.size)
    chosen = Matching(allowed, kept.held)
    for number, share in enumerate(shares):
        own = chosen.held[number]
        _fill(chosen, number, host.nearest(own, chosen.free(number), share.size - own.bit_count()), share.size)
    chosen.exchange([host.mask(share.present & share.allowed) for share in shares])
    found = {share.name: host.cores(cores) for share, cores in zip(shares, chosen.held, strict=True)}
    _share(found, shares, least)
    return found


def _fill(matching: Matching, taker: int, best: int, size: int) -> None:
    matching.give(taker, best)
    while matching.held[taker].bit_count() < size and matching.take(taker):
        pass


def _best(cores: int, wanted: int, given_up: int) -> tuple[int, int]:
    """Return the core that is best passed on, and how many more are then with a taker that wants them.

    :param wanted, given_up: what the receiver and the giver want
    """
    for some, more in ((cores & wanted & ~given_up, 1), (cores & ~(wanted ^ given_up), 0), (cores, -1)):
        if some:
            return some & -some, more
    return 0, 0


def _circle(reached: Sequence[tuple[int, int] | None], giver: int) -> list[tuple[int, int, int]]:
    """Return the exchanges that lead from a giver back to itself; empty if they lead elsewhere."""
    found: list[tuple[int, int, int]] = []
    at = giver
    while (step := reached[at]) is not None and len(found) <= len(reached):
        found.append((step[0], at, step[1]))
        at = step[0]
        if at == giver:
            return found
    return []


def _share(found: dict[str, Cores], shares: Sequence[Share], least: Mapping[str, int]) -> None:
    """Let containers with fewer cores than their minimum share cores that have the fewest users."""
    users: dict[int, int] = {}
    for cores in found.values():
        for core in cores:
            users[core] = users.get(core, 0) + 1
    for share in shares:
        short = least[share.name] - len(found[share.name])
        if short > 0:
            others = sorted(share.allowed - found[share.name],
                            key=lambda core: (users.get(core, 0), core not in share.present, core))[:short]
            users |= {core: users.get(core, 0) + 1 for core in others}
            found[share.name] |= frozenset(others)


def _union(masks: Iterable[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found


def _bits(mask: int) -> Iterator[int]:
    """Yield each bit of a mask, the lowest first."""
    while mask:
        lowest = mask & -mask
        yield lowest
        mask ^= lowest
