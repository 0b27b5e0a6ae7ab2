# SPDX-License-Identifier: Apache-2.0
"""Translate CPUs, memory and disk speed of a VM to a container's limits. Pure."""

import re
from collections.abc import Mapping

from containerhost.spec import Cpu, IoLimit, Memory
from onedriver.errors import BadInput
from onedriver.vm import Disk, Topology, Vm

NUMBER = re.compile(r"[1-9][0-9]{0,8}")


def cpu(vm: Vm, node_cpus: Mapping[int, frozenset[int]]) -> Cpu:
    """Return the CPU limits: pinned to the CPUs that the core chose, or to all CPUs of the nodes it chose; else CPU
    limits its time."""
    nodes = frozenset(node.memory_node for node in vm.topology.nodes)
    unknown = nodes - node_cpus.keys()
    if unknown:
        raise BadInput(f"VM {vm.id} is placed on NUMA node {min(unknown)}, which this host does not have")
    if vm.topology.pin_policy == "NODE_AFFINITY":
        cores = frozenset[int]().union(*(node_cpus[node] for node in nodes))
        return Cpu(vm.vcpu, cores, nodes, share=vm.cpu)
    cores = frozenset[int]().union(*(node.cpus for node in vm.topology.nodes))
    require_chosen(vm.id, vm.topology, cores)
    return Cpu(vm.vcpu, cores, nodes) if cores else Cpu(vm.vcpu, share=vm.cpu)


def require_chosen(vm_id: int, topology: Topology, cores: frozenset[int]) -> None:
    if topology.pin_policy != "NONE" and not cores:
        raise BadInput(f"VM {vm_id} is to be pinned ({topology.pin_policy}), but the core chose no CPUs: set the "
                       "host's PIN_POLICY to PINNED")


def memory(vm: Vm) -> Memory:
    page = vm.topology.hugepage
    return Memory(vm.memory, {page: vm.memory} if page else {})


def processes(own: Mapping[str, str], key: str, most: int) -> int:
    """Return the most processes and threads of a container.

    :param own: the template's attributes of the driver
    :param key: of them, by which it asks for fewer
    :param most: what the administrator allows
    :raises BadInput: it asks for something else
    """
    text = own.get(key, "").strip()
    if text and (not NUMBER.fullmatch(text) or int(text) > most):
        raise BadInput(f"{key} is {text[:60]!r}, but must be a number from 1 to {most}, the node's process_limit")
    return int(text) if text else most


def io_limit(disk: Disk) -> IoLimit:
    """Return the limits of a disk's speed. Control groups count reading and writing apart: a total is the limit of
    each."""
    return IoLimit(*(disk.speed.get(f"{way}_{unit}_SEC", disk.speed.get(f"TOTAL_{unit}_SEC"))
                     for unit in ("BYTES", "IOPS") for way in ("READ", "WRITE")))
