# SPDX-License-Identifier: Apache-2.0
"""Find the devices in the host configuration of a container on Docker that others created. Pure.

The configuration counts, running or not. Docker names devices by nodes, directories of nodes, a vendor's request, or
all at once.
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
    """Return whether a node, or a directory of nodes, includes a node of this device alone."""
    directory = path.rstrip("/") + "/"
    return bool(path) and any(node.use is not NodeUse.SHARED and (node.path == path or node.path.startswith(directory))
                              for node in device.nodes)


def requests(request: Mapping[str, Any], device: Device) -> bool:
    """Return whether a request for GPUs may include the device: a request without a uuid may include any."""
    if not vendors.of(device).by_gpu_request:
        return False
    ids = [str(wanted).lower() for wanted in request.get("DeviceIDs") or ()]
    return not ids or device.uuid is None or any(wanted == device.uuid.lower() or wanted.isdecimal() for wanted in ids)
