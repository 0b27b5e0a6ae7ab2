# SPDX-License-Identifier: Apache-2.0
"""Share GPUs between several containers as the operator configures: ``/etc/containerhost/sharing.yaml``.

::

    0000:3b:00.0: {containers: 4}

Such a GPU has that many *shares* (``0000:3b:00.0/share0`` …), each a device that one container can hold and that
brings the GPU's nodes. The GPU's driver time-slices between processes; they compete for memory, and are not isolated
as slices are. A GPU is whole or shared, never both: the one and its shares exclude each other.

A malformed file makes every GPU unhealthy: otherwise a GPU meant to be shared could be allocated whole.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from containerhost.devices.model import PARTS, Device, Kind, NodeUse
from containerhost.errors import SpecError
from containerhost.linux.sysfs import Host

FILE = "/etc/containerhost/sharing.yaml"
MOST = 64
NUMBER = re.compile(r"[0-9]{1,3}")
TIME_SLICING, MPS = "time-slicing", "mps"


@dataclasses.dataclass(frozen=True)
class Sharing:
    """Hold the operator's configuration of shared GPUs.

    :ivar trouble: why the file is malformed; None if it is valid or missing
    """

    shares: Mapping[str, int] = dataclasses.field(default_factory=dict)
    trouble: str | None = None


def read(host: Host) -> Sharing:
    if not host.exists(FILE):
        return Sharing()
    from containerhost.inventory import devicefile  # noqa: PLC0415  (and YAML, which hosts without that file need not wait for)

    try:
        return Sharing(shares(devicefile.load(Path(host.root, FILE.lstrip("/")))))
    except SpecError as error:
        return Sharing(trouble=str(error))


def shares(content: Mapping[str, Any]) -> dict[str, int]:
    """Parse the number of containers of each shared GPU.

    :raises SpecError: a value is not a number of containers
    """
    return {address: _containers(address, value) for address, value in content.items()}


def _containers(address: str, value: Any) -> int:
    if not isinstance(value, dict) or "containers" not in value or value.keys() - {"containers", "method"}:
        raise SpecError(f"GPU {address}: {value!r} must be {{containers: NUMBER}}, optional method: {TIME_SLICING}")
    method = value.get("method", TIME_SLICING)
    if method == MPS:
        raise SpecError(
            f"GPU {address}: MPS is not offered. A fault of one of its clients ends the others' work, its server "
            "serves clients of one user at a time, while every container has its own users, and all would have to "
            f"reach the pipes of one daemon. Use {TIME_SLICING}, or cut the GPU into slices")
    if method != TIME_SLICING:
        raise SpecError(f"GPU {address}: the method must be {TIME_SLICING}, not {method!r}")
    number = value["containers"]
    if not isinstance(number, str) or not NUMBER.fullmatch(number) or not 2 <= int(number) <= MOST:
        raise SpecError(f"GPU {address}: containers must be 2 to {MOST}, not {number!r}; leave out a GPU for a single "
                        "container")
    return int(number)


def divided(devices: Iterable[Device], wanted: Sharing) -> tuple[Device, ...]:
    """Return the devices, with shared GPUs' shares. Pure."""
    known = tuple(devices)
    if wanted.trouble:
        return tuple(_unwell(device, wanted.trouble) if device.kind is not Kind.NET else device for device in known)
    cut = {device.parent for device in known if device.kind in PARTS}
    return tuple(found for device in known for found in _with_shares(device, wanted.shares, device.id in cut))


def _with_shares(device: Device, shares: Mapping[str, int], is_cut: bool) -> Iterator[Device]:
    number = shares.get(device.id, 0)
    if device.kind is not Kind.GPU or not number:
        yield device
    elif is_cut:
        yield _unwell(device, f"{FILE} lets {number} containers share it, but it is cut into slices: take it out there")
    else:
        yield device
        nodes = tuple(dataclasses.replace(node, use=NodeUse.SHARED) if node.use is NodeUse.OWN else node
                      for node in device.nodes)
        for share in range(number):
            yield dataclasses.replace(device, id=f"{device.id}/share{share}", kind=Kind.GPU_SHARE, parent=device.id,
                                      nodes=nodes)


def _unwell(device: Device, complaint: str) -> Device:
    return dataclasses.replace(device, health=(*device.health, complaint))


def unknown_gpus(wanted: Sharing, devices: Iterable[Device]) -> list[str]:
    """Describe the entries of the file that are not GPUs of this host."""
    gpus = {device.id for device in devices if device.kind is Kind.GPU}
    return [f"{FILE} lets containers share {address}, but this host has no such GPU"
            for address in sorted(wanted.shares.keys() - gpus)]
