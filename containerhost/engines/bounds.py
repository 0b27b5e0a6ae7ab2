# SPDX-License-Identifier: Apache-2.0
"""Define the minimum and maximum size of a container, as the cloud's driver marks it. Pure.

The mark is a label of the driver's: a JSON object with ``version``, ``cpus`` and ``memory`` (each the least and the
most; memory in bytes), ``priority``, and ``cores``, the host's cores that the cloud permits (empty: all).
"""

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from containerhost.engines import marks
from containerhost.engines.spec import ContainerSpec, Cpu, Memory
from containerhost.errors import SpecError
from containerhost.linux import records
from containerhost.linux.idlist import id_list, id_runs

LABEL = "containerhost.elastic"
VERSION = 1
PRIORITY = 5  # default, from 0 to 10
MOST_PRIORITY = 10
LEAST_MEMORY = 16 << 20  # bytes; an init and a shell
CORES = re.compile(r"([0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*)?")


class Range(NamedTuple):
    least: int
    most: int

    @property
    def is_fixed(self) -> bool:
        return self.least == self.most


class Wanted(NamedTuple):
    """Hold the request of a flavor or a template; None if unspecified. Memory in bytes."""

    cores_least: int | None = None
    cores_most: int | None = None
    memory_least: int | None = None
    memory_most: int | None = None
    priority: int | None = None


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Hold the least and the most cores and memory between which the elastic service resizes a container.

    :ivar memory: bytes
    :ivar choice: the host's cores that the container may have; empty permits all that containers may have
    """

    cores: Range
    memory: Range
    priority: int = PRIORITY
    choice: frozenset[int] = frozenset()


def bounds_of(wanted: Wanted, cpu: Cpu, memory: Memory, source: str) -> Bounds:
    """Return the bounds of a container.

    :param source: flavor or template, for the message
    :raises SpecError: it requests more than that, or nothing, or another option fixes its cores or memory
    """
    if cpu.is_chosen or cpu.ranks:
        raise SpecError(f"{source} requests elastic cores and an affinity, which fixes them: remove one of the "
                        "two")
    if memory.hugepages and (wanted.memory_least or wanted.memory_most):
        raise SpecError(f"{source} requests elastic memory and huge pages, which the kernel cannot reclaim: remove "
                        "one of the two")
    priority = PRIORITY if wanted.priority is None else wanted.priority
    if not 0 <= priority <= MOST_PRIORITY:
        raise SpecError(f"{source}: the elastic priority is {priority}, but must be a number from 0 to "
                        f"{MOST_PRIORITY}")
    return Bounds(_range(wanted.cores_least, wanted.cores_most, cpu.count, 1, f"{source}: elastic cores"),
                 _range(wanted.memory_least, wanted.memory_most, memory.size, LEAST_MEMORY,
                        f"{source}: elastic memory in bytes"), priority, cpu.cores)


def _range(least: int | None, most: int | None, size: int, lowest: int, name: str) -> Range:
    most = size if most is None else most
    least = most if least is None else least
    if not min(lowest, size) <= least <= most <= size:
        raise SpecError(f"{name} are requested from {least} to {most}, but must be from at least {min(lowest, size)} "
                        f"to at most {size}, which is what the cloud has claimed; correct the minimum and the maximum, "
                        "or the size itself")
    return Range(least, most)


def mark(bounds: Bounds) -> str:
    cores = ",".join(f"{first}-{last}" for first, last in id_runs(bounds.choice))
    return json.dumps({records.VERSION: VERSION, "cpus": list(bounds.cores), "memory": list(bounds.memory),
                       "priority": bounds.priority, "cores": cores}, sort_keys=True)


def parse(labels: Mapping[str, str]) -> Bounds | None:
    """Return the bounds of a container; None for one that did not opt in.

    :raises ValueError: this release does not support its mark
    """
    found = marks.read(labels, LABEL, lambda found: (
        Range(*map(_number, found["cpus"])), Range(*map(_number, found["memory"])), _number(found["priority"]),
        str(found["cores"])))
    if found is None:
        return None
    cores, memory, priority, choice = found
    if not (1 <= cores.least <= cores.most and 1 <= memory.least <= memory.most and CORES.fullmatch(choice)):
        raise marks.contradiction(labels, LABEL)
    return Bounds(cores, memory, min(priority, MOST_PRIORITY), id_list(choice))


def _number(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} in mark {LABEL} is not a size")
    return value


def marked(spec: ContainerSpec, bounds: Bounds | None) -> ContainerSpec:
    return spec if bounds is None else dataclasses.replace(spec, labels=dict(spec.labels) | {LABEL: mark(bounds)})


def keeping_size(spec: ContainerSpec, mark: str | None, document: Mapping[str, object] | None) -> ContainerSpec:
    """Return the spec with the size set by the elastic service, if the container's bounds are unchanged.

    :param mark, document: the container's present mark, and its present document of resources
    """
    if mark is None or document is None or spec.labels.get(LABEL) != mark:
        return spec
    bounds = parse({LABEL: mark})
    cpus, memory = document.get("cpus"), document.get("memory")
    cores = frozenset(cpus.get("cores", ())) if isinstance(cpus, dict) else frozenset[int]()
    if (bounds is None or not cores or type(memory) is not int
            or not (len(cores) <= bounds.cores.most and memory <= bounds.memory.most)):
        return spec
    cpu = dataclasses.replace(spec.cpu, count=len(cores), cores=cores)
    return dataclasses.replace(spec, cpu=cpu, memory=dataclasses.replace(spec.memory, size=memory))
