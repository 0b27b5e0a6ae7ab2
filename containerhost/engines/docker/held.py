# SPDX-License-Identifier: Apache-2.0
"""Find which devices a container on Docker that others made names: a pure reading of its host configuration.

What is configured counts, running or not. Docker's own ways to a device are nodes, directories of nodes, a vendor's
request, and everything at once.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from containerhost import vendors
from containerhost.devices.model import Device, NodeUse


def held(host_config: Mapping[str, Any], devices: Iterable[Device]) -> frozenset[str]:
    """Return the ids of the devices that the container names."""
    everything = bool(host_config.get("Privileged"))
    paths = [str(entry.get("PathOnHost", "")) for entry in host_config.get("Devices") or ()]
    return frozenset(device.id for device in devices
                     if (everything and device.nodes) or any(names(path, device) for path in paths)
                     or any(requests(request, device) for request in host_config.get("DeviceRequests") or ()))


def names(path: str, device: Device) -> bool:
    """Return whether a node, or a directory of nodes, brings a node that is the device's own."""
    directory = path.rstrip("/") + "/"
    return bool(path) and any(node.use is not NodeUse.SHARED and (node.path == path or node.path.startswith(directory))
                              for node in device.nodes)


def requests(request: Mapping[str, Any], device: Device) -> bool:
    """Return whether a request for GPUs can bring the device: one that names no GPU by its uuid can bring any."""
    if not vendors.of(device).by_gpu_request:
        return False
    ids = [str(wanted).lower() for wanted in request.get("DeviceIDs") or ()]
    return not ids or device.uuid is None or any(wanted == device.uuid.lower() or wanted.isdecimal() for wanted in ids)
