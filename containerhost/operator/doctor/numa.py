# SPDX-License-Identifier: Apache-2.0
"""Check the firmware's description of NUMA nodes."""

from collections.abc import Iterator

from containerhost.devices.findings import Finding, note, wrong
from containerhost.operator.doctor.hostdata import HostData

NAME = "numa"


def check(data: HostData) -> Iterator[Finding]:
    nodes = data.topology.nodes
    if len(nodes) > 1:
        for device in data.inventory.devices:
            if device.numa_node is None:
                yield wrong(NAME, device.id, "the firmware does not say which NUMA node it is on, so it cannot be "
                            "placed near its CPUs", "update the firmware, or name the node in "
                            f"/sys/bus/pci/devices/{device.address}/numa_node at every boot")
    for node in nodes:
        if node.cpus and not node.memory:
            yield note(NAME, f"NUMA node {node.id}", "it has processors but no memory: what runs there works on the "
                       "memory of another node", "put memory modules into the sockets of this processor")
    for node in data.topology.of_devices:
        yield note(NAME, f"NUMA node {node.id}", f"its {node.memory >> 30} GiB are memory of a GPU, which its driver "
                   "has brought online as system memory: they are reported to no cloud", "keep the host's programs off "
                   "the node (numactl --membind, AllowedMemoryNodes= of systemd)")
    sockets = data.topology.cpu.sockets
    if sockets > 1 and len(nodes) == 1:
        yield note(NAME, "NUMA nodes", f"{sockets} sockets are shown as one node, so nothing can be placed near "
                   "anything", "turn off node interleaving in the firmware, and boot without numa=off")
