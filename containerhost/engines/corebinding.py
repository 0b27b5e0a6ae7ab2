# SPDX-License-Identifier: Apache-2.0
"""Choose cores and memory nodes for containers with an affinity, and keep memory off other containers' GPUs.

A container's exclusive cores are stored in its configuration, so that they stay exclusive, stopped or running, until
it is deleted. A host-wide lock covers choosing and storing them: containers created concurrently never get the same
core.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path

from containerhost import errors
from containerhost.engines import affinity
from containerhost.engines.contract import Containers, ContainerState
from containerhost.engines.spec import ContainerSpec
from containerhost.inventory import memorynodes
from containerhost.linux.idlist import id_list
from containerhost.linux.lock import FileLock
from containerhost.linux.process import rungroup
from containerhost.linux.sysfs import Host

LOCK = "cores"  # below the lock directory of all drivers
TIMEOUT = 600.0  # s; a holder creates or changes a container


class CoreBinding:
    """Bind containers with an affinity to free cores of this host and the NUMA nodes of those cores.

    :param directory: shared by all processes that create containers on this host
    :param consumer: the label with the owner of a container: a replacement gets the same cores
    :param reserved: cores that no container gets exclusively
    """

    def __init__(self, engine: Containers, host: Host, directory: Path, consumer: str,
                 reserved: frozenset[int] = frozenset()) -> None:
        self._engine = engine
        self._host = host
        self._lock = FileLock(directory / LOCK, TIMEOUT)
        self._consumer = consumer
        self._reserved = reserved

    def preview(self, spec: ContainerSpec) -> ContainerSpec:
        """Return the specification as :meth:`bound` would; another container may get the cores first.

        :raises UnsupportedOnHost: the host lacks free cores where the affinity needs them
        """
        found = self._chosen(spec) if spec.cpu.is_chosen or spec.cpu.may_revert else spec
        gpus = [grant.device.address for grant in found.grants if grant.gpu]
        return dataclasses.replace(found, cpu=dataclasses.replace(
            found.cpu, memory_nodes=memorynodes.for_container(self._host, gpus)))

    @contextlib.contextmanager
    def bound(self, spec: ContainerSpec) -> Iterator[ContainerSpec]:
        """Yield the specification with its cores, excluding other choices while the block stores them.

        Sufficient present cores are kept. One request, none without an affinity.

        :raises UnsupportedOnHost: the host lacks free cores where the affinity needs them
        :raises EngineBusy: another process does not finish
        """
        with contextlib.ExitStack() as stack:
            if spec.cpu.is_chosen or spec.cpu.may_revert:
                stack.enter_context(self._lock.held(errors.EngineBusy))
            yield self.preview(spec)

    def _chosen(self, spec: ContainerSpec) -> ContainerSpec:
        from containerhost.inventory import topology  # noqa: PLC0415  (few containers have an affinity)

        cpu, host, states = spec.cpu, topology.read(self._host), self._engine.containers()
        mine = [state for state in states if self._is_same(state, spec)]
        had = held_by(mine)
        if not cpu.is_chosen:
            return dataclasses.replace(spec, cpu=dataclasses.replace(cpu, reserved=had))
        allowed = (cpu.choice or frozenset()) & host.cpus - self._reserved - id_list(
            self._host.text("/sys/devices/system/cpu/isolated"))
        near = tuple(grant.device.numa_node for grant in spec.grants if grant.device.numa_node is not None)
        others = held_by(state for state in states if state not in mine) | rungroup.cores()
        binding = affinity.rebind(host, allowed, others,
                                  affinity.Request(cpu.affinity or affinity.Affinity.ANY, cpu.count, None, near),
                                  cores_of(mine), had)
        return dataclasses.replace(spec, cpu=dataclasses.replace(
            cpu, cores=binding.cores, nodes=binding.nodes, ranks=binding.ranks, share=None,
            reserved=had - binding.cores if cpu.may_revert else frozenset()))

    def _is_same(self, state: ContainerState, spec: ContainerSpec) -> bool:
        whose = spec.labels.get(self._consumer)
        return state.name == spec.name or (whose is not None and state.labels.get(self._consumer) == whose)


def unbound(spec: ContainerSpec) -> ContainerSpec:
    """Return the specification without chosen cores, for a container that gets them later."""
    cpu = dataclasses.replace(spec.cpu, memory_nodes=frozenset())
    if spec.cpu.is_chosen:
        cpu = dataclasses.replace(cpu, cores=frozenset(), nodes=frozenset(), ranks=(), reserved=frozenset())
    return dataclasses.replace(spec, cpu=cpu)


def cores_of(states: Iterable[ContainerState]) -> frozenset[int]:
    return frozenset[int]().union(*(state.cores for state in states))


def held_by(states: Iterable[ContainerState]) -> frozenset[int]:
    """Return the cores that are exclusive to a container."""
    return frozenset[int]().union(*(state.cores | state.reserved for state in states))
