# SPDX-License-Identifier: Apache-2.0
"""Choose GPUs and network functions of a host together: near each other, and leaving pairs intact. Pure.

A pair is a GPU and a network function below one PCIe switch: only there data passes between the two without the
processor. A request for one kind takes unpaired devices first.
"""

import collections
import dataclasses
import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from containerhost.errors import NoPlacement, SpecError

Links = Mapping[frozenset[str], int]
"""Number of direct links between two GPUs, by their ids (NVLink)."""


class Nearness(enum.IntEnum):
    """Rank the proximity of all devices of a set, nearest first."""

    SWITCH = 0
    ROOT = 1
    NODE = 2
    HOST = 3


WORDS = {Nearness.SWITCH: "are below one PCIe switch", Nearness.ROOT: "are below one PCIe root",
         Nearness.NODE: "are on one NUMA node", Nearness.HOST: "are on different NUMA nodes"}


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """Describe a free device.

    :ivar path: its PCI path below /sys/devices: host bridge, ports on the way, function
    """

    id: str
    path: tuple[str, ...]
    numa_node: int | None
    is_gpu: bool

    @property
    def root(self) -> str:
        return self.path[0]

    @property
    def switch(self) -> tuple[str, ...]:
        """Return the root port that it is behind: devices behind one port share a switch, or are one card."""
        return self.path[:2] if len(self.path) > 2 else self.path


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """Hold the devices chosen for a request, their proximity, and the reasons.

    :ivar devices: GPUs first
    """

    devices: tuple[Candidate, ...]
    nearness: Nearness
    links: int
    reason: str


def choose(free: Sequence[Candidate], gpus: int, functions: int, links: Links | None = None) -> Choice:
    """Return the best set of free devices.

    In this order: GPUs with the most links between them; the highest proximity; the most pairs in the set, and the
    fewest broken pairs outside; the devices with the fewest free neighbours. Every GPU, or function, is tried as the
    first, and the best pair, or device, is added until there are enough: for two devices that finds the optimum; for
    more, each GPU has a function below its switch before any has two. Deterministic: the order of ``free`` does not
    matter.

    :raises SpecError: no device is requested
    """
    if gpus < 0 or functions < 0 or gpus + functions == 0:
        raise SpecError(f"{gpus} GPUs and {functions} network functions are requested; request at least one device")
    have = sum(each.is_gpu for each in free)
    if have < gpus or len(free) - have < functions:
        raise NoPlacement(f"{gpus} GPUs and {functions} network functions are requested; this host has {have} GPUs and "
                          f"{len(free) - have} network functions free and healthy")
    ordered = sorted(free, key=lambda each: each.id)
    score = _Score(ordered, links or {})
    # If the set has GPUs, begin with one of them.
    firsts = [each for each in _unlike(ordered) if each.is_gpu == (gpus > 0)]
    found = min((_grown(first, ordered, gpus, functions, score) for first in firsts), key=score)
    devices = tuple(sorted(found, key=lambda each: (not each.is_gpu, each.id)))
    return Choice(devices, nearness(devices), score.links(devices), _reason(devices, score))


def nearness(devices: Collection[Candidate]) -> Nearness:
    if len({each.switch for each in devices}) == 1:
        return Nearness.SWITCH
    if len({each.root for each in devices}) == 1:
        return Nearness.ROOT
    nodes = {each.numa_node for each in devices}
    return Nearness.NODE if len(nodes) == 1 and None not in nodes else Nearness.HOST


def pairs(devices: Iterable[Candidate]) -> int:
    """Return how many GPUs have a network function below their switch that no other GPU needs."""
    return _pairs(_counts(devices, DOMAINS[0]))


_Counts = Mapping[object, Sequence[int]]
DOMAINS: Sequence[Callable[[Candidate], object]] = (
    lambda each: each.switch, lambda each: each.root, lambda each: each.numa_node)


def _counts(devices: Iterable[Candidate], domain: Callable[[Candidate], object]) -> _Counts:
    """Return the number of GPUs and of functions in each domain."""
    counts: dict[object, list[int]] = collections.defaultdict(lambda: [0, 0])
    for each in devices:
        counts[domain(each)][not each.is_gpu] += 1
    return counts


def _pairs(counts: _Counts) -> int:
    return sum(map(min, counts.values()))


def _unlike(devices: Iterable[Candidate]) -> list[Candidate]:
    """Return the first of each group of equivalent devices: virtual functions of one card."""
    found: dict[object, Candidate] = {}
    for each in devices:
        found.setdefault((each.is_gpu, each.path[:-1], each.id if each.is_gpu or len(each.path) < 3 else ""), each)
    return list(found.values())


def _grown(first: Candidate, free: Sequence[Candidate], gpus: int, functions: int, score: "_Score"
           ) -> tuple[Candidate, ...]:
    """Return a set grown from a device by repeatedly adding the best one.

    First a function for a GPU that has none yet, then a GPU with a function, below its switch if there is one; then
    the missing devices of one kind."""
    chosen: tuple[Candidate, ...] = (first,)
    while len(chosen) < gpus + functions:
        have = sum(each.is_gpu for each in chosen)
        left = _unlike(each for each in free if each not in chosen)
        more_gpus = [each for each in left if each.is_gpu] if have < gpus else []
        more_functions = [each for each in left if not each.is_gpu] if len(chosen) - have < functions else []
        more: list[tuple[Candidate, ...]]
        if not more_functions:
            more = [(each,) for each in more_gpus]
        elif not more_gpus or len(chosen) - have < have:
            more = [(each,) for each in more_functions]
        else:
            more = [(gpu, function) for gpu in more_gpus for function in
                    [each for each in more_functions if each.switch == gpu.switch] or more_functions]
        chosen = min(((*chosen, *added) for added in more), key=score)
    return chosen


class _Score:
    """Compare sets of devices: lower is better. Its time depends on the set, not on all free devices."""

    def __init__(self, free: Sequence[Candidate], links: Links) -> None:
        self._free = [_counts(free, domain) for domain in DOMAINS]
        self._links: dict[str, dict[str, int]] = collections.defaultdict(dict)
        for pair, count in links.items():
            one, other = sorted(pair)
            self._links[one][other] = count

    def __call__(self, devices: Sequence[Candidate]) -> tuple[object, ...]:
        counts = [_counts(devices, domain) for domain in DOMAINS]
        inside = tuple(-_pairs(chosen) for chosen in counts)
        broken = tuple(map(_broken, counts, self._free))
        at_roots, free_at_roots = counts[1], self._free[1]
        beside = sum(sum(chosen) * (sum(free_at_roots[root]) - sum(chosen)) for root, chosen in at_roots.items())
        return (-self.links(devices), nearness(devices), inside, broken, beside, sorted(each.id for each in devices))

    def links(self, devices: Iterable[Candidate]) -> int:
        ids = {each.id for each in devices}
        return sum(count for one in ids & self._links.keys() for other, count in self._links[one].items()
                   if other in ids)

    def breaks(self, devices: Sequence[Candidate]) -> int:
        return _broken(_counts(devices, DOMAINS[0]), self._free[0])


def _broken(chosen: _Counts, free: _Counts) -> int:
    """Return how many pairs of free devices are only partly in the chosen set."""
    return sum(min(free[domain]) - min(gpus, functions) - min(free[domain][0] - gpus, free[domain][1] - functions)
               for domain, (gpus, functions) in chosen.items())


def _reason(devices: Sequence[Candidate], score: _Score) -> str:
    said = []
    if links := score.links(devices):
        said.append(f"its GPUs have {links} direct links")
    if len(devices) > 1:
        said.append(f"the devices {WORDS[nearness(devices)]}")
    if whole := pairs(devices):
        said.append(f"{whole} of its GPUs have a network function below their PCIe switch")
    broken = score.breaks(devices)
    said.append(f"{broken} pairs of other devices are broken, because nothing else is free" if broken
                else "no pair of a free GPU and a free function is broken")
    return "; ".join(said)
