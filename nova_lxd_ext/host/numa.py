# SPDX-License-Identifier: Apache-2.0
"""Translate the host's NUMA nodes for nova. Pure."""

from collections.abc import Mapping

from nova.objects.network_metadata import NetworkMetadata
from nova.objects.numa import NUMACell, NUMAPagesTopology, NUMATopology
from oslo_utils import units

from containerhost.inventory.topology import NumaNode, Topology
from nova_lxd_ext.host.cpusets import CpuSets

SMALL_PAGE = 4 * units.Ki


def topology(host: Topology, cpus: CpuSets, reserved: Mapping[int, Mapping[int, int]]) -> NUMATopology:
    """Return all cells without usage, which nova adds.

    :param reserved: ``[DEFAULT] reserved_huge_pages``: node -> page size in KiB -> number of pages
    """
    return NUMATopology(cells=[_cell(node, cpus, reserved.get(node.id, {})) for node in host.nodes])


def _cell(node: NumaNode, cpus: CpuSets, reserved: Mapping[int, int]) -> NUMACell:
    usable = node.cpus & cpus.all
    siblings = [set(core & usable) for core in node.siblings]
    return NUMACell(
        id=node.id,
        socket=node.socket,
        cpuset=set(node.cpus & cpus.shared),
        pcpuset=set(node.cpus & cpus.dedicated),
        memory=node.memory // units.Mi,
        cpu_usage=0,
        memory_usage=0,
        pinned_cpus=set(),
        siblings=[core for core in siblings if core],
        mempages=[_pages(size, total, reserved) for size, total in _page_counts(node).items()],
        # Only virtual switches need the networks near each node; the driver reports none.
        network_metadata=NetworkMetadata(physnets=set(), tunneled=False))


def _page_counts(node: NumaNode) -> dict[int, int]:
    """Return the number of pages by size in bytes; ordinary pages are the memory outside huge pages."""
    huge = {size: total for size, (total, _) in sorted(node.hugepages.items())}
    ordinary = node.memory - sum(size * total for size, total in huge.items())
    return {SMALL_PAGE: max(ordinary, 0) // SMALL_PAGE} | huge


def _pages(size: int, total: int, reserved: Mapping[int, int]) -> NUMAPagesTopology:
    size_kb = size // units.Ki
    return NUMAPagesTopology(size_kb=size_kb, total=total, used=0, reserved=reserved.get(size_kb, 0))
