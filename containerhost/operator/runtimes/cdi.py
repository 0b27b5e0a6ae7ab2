# SPDX-License-Identifier: Apache-2.0
"""Describe this host's devices for the Container Device Interface (CNCF CDI specification, SPEC.md).

Podman and other engines use it for ``--device NAME``.

A specification names nodes by path only, and the engine reads their numbers when a container starts: with a stale
file, a start fails if the node is missing, and never brings another device by its number.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from containerhost.devices.grants import Grant, GrantOptions
from containerhost.devices.model import PARTS, Device
from containerhost.errors import DeviceError
from containerhost.linux import files
from containerhost.vendors import make_grant

FILE = Path("/etc/cdi/containerhost.json")
KIND = "containerhost/device"
# The first version in which a device's name may begin with a digit, as PCI addresses do (SPEC.md, "Released versions").
VERSION = "0.5.0"


def name(device_id: str) -> str:
    """Return a device's name in CDI, which has no slash: ``0000:3b:00.0_gi1_ci0``."""
    return device_id.replace("/", "_")


def specification(devices: Iterable[Device]) -> dict[str, Any] | None:
    """Return the specification of all devices with nodes; None without any, because an empty one is invalid. Pure.

    For a divided GPU, these are its parts."""
    found = grants(devices)
    if not found:
        return None
    return {"cdiVersion": VERSION, "kind": KIND, "devices": [
        {"name": name(grant.device.id), "containerEdits": {"deviceNodes": [
            {"path": path, "permissions": "rw"} for path in dict.fromkeys(node.path for node in grant.nodes)]}}
        for grant in found]}


def grants(devices: Iterable[Device]) -> tuple[Grant, ...]:
    """Return the grants of all allocatable devices with nodes; for a divided GPU, of its parts. Pure."""
    known = tuple(devices)
    divided = {device.parent for device in known if device.kind in PARTS}
    return tuple(grant for device in known if device.id not in divided and (grant := _grant(device)) and grant.nodes)


def _grant(device: Device) -> Grant | None:
    """Return the grant of a device; None if it is not allocatable."""
    try:
        return make_grant(device, GrantOptions()) if device.sound else None
    except DeviceError:
        return None


def write(path: Path, found: dict[str, Any] | None) -> str:
    """Update the file atomically.

    :returns: what was done: ``written``, ``unchanged`` or ``removed``
    :raises OSError: it cannot be written
    """
    ours = path.exists() and files.is_replaceable(path)
    if found is None:
        if ours:
            path.unlink()
        return "removed" if ours else "unchanged"
    content = f"{json.dumps(found, indent=1)}\n".encode()
    if ours and path.read_bytes() == content:
        return "unchanged"
    if not path.parent.exists():
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    files.write_output(path, content)
    return "written"
