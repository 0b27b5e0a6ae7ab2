# SPDX-License-Identifier: Apache-2.0
"""Report every RDMA function of the host with its ports, nodes and nearest GPUs (`containerhost rdma`)."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from containerhost.allocation.store import Allocation
from containerhost.devices import rdmaports
from containerhost.devices.model import Device, NodeUse
from containerhost.inventory import pci_topology
from containerhost.inventory.scan import Inventory
from containerhost.linux.sysfs import Host


def rows(inventory: Inventory, host: Host, records: Mapping[str, Allocation]) -> list[dict[str, Any]]:
    """Return a row of JSON values for each function. GUIDs and states are the current ones."""
    connections = pci_topology.connections(inventory, host)
    ways = {(connection.gpu, connection.function): connection.way for connection in connections}
    found = []
    for device in inventory.devices:
        if device.rdma:
            near = pci_topology.nearest(connections, device.id)
            found.append({
                "device": device.id, "ibdev": device.rdma.ibdev, "link_layer": device.link_layer,
                "node_guid": device.rdma.node_guid, "port_guid": device.rdma.port_guid, "netdev": device.netdev,
                "numa_node": device.numa_node, "parent": device.parent, "elsewhere": device.rdma.away,
                "ports": [port_row(port) for port in rdmaports.ports(host, device)],
                "nodes": [node.path for node in device.nodes], "nearest_gpus": list(near),
                "way": ways[near[0], device.id] if near else None,
                "owner": str(records[device.id].consumer) if device.id in records else None})
    return found


def port_row(port: rdmaports.Port) -> dict[str, Any]:
    return dataclasses.asdict(port) | {"gids": [dataclasses.asdict(gid) | {"address": gid.address}
                                                for gid in port.gids]}


def has_manager(devices: tuple[Device, ...]) -> bool:
    """Return whether the connection manager's node exists for functions that need it."""
    return any(node.use is NodeUse.SHARED for device in devices if device.rdma for node in device.nodes)
