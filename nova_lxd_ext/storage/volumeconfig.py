# SPDX-License-Identifier: Apache-2.0
"""Translate nova's and Cinder's data of a volume to its connection and its node in the container. Pure.

Impossible requests are refused here, before any change.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nova import objects
from nova.compute import utils
from nova.virt import block_device, driver

from containerhost.errors import SpecError

ROOT = "/dev/vda"  # nova's name for the root disk; a container has no node for it
PATH = re.compile(r"/dev/vd[a-z]{1,2}")

# Cinder's names (driver_volume_type) of volumes that os-brick connects as block devices of the host.
KINDS = frozenset({"fibre_channel", "iscsi", "iser", "lightos", "local", "nvme", "nvmeof", "rbd", "scaleio",
                   "storpool"})


@dataclasses.dataclass(frozen=True)
class Volume:
    """Describe a volume requested for a server.

    :ivar data: os-brick's input to connect it; may contain secrets
    """

    id: str
    kind: str
    data: Mapping[str, Any] = dataclasses.field(repr=False)
    path: str


def volume(connection_info: Mapping[str, Any], mountpoint: str, encryption: Mapping[str, Any] | None = None) -> Volume:
    """Return a volume from Cinder's connection information.

    :raises SpecError: a container cannot have this volume, with the reason
    """
    found = block_device.get_volume_id(connection_info)
    data = connection_info.get("data") or {}
    kind = str(connection_info.get("driver_volume_type") or "").lower()
    if not found:
        raise SpecError(f"The volume for {mountpoint} has no connection information from Cinder.")
    for reason in unsupported_reasons(kind, data, mountpoint, encryption):
        raise SpecError(f"Volume {found} cannot be attached: {reason}.")
    return Volume(found, kind, data, mountpoint)


def unsupported_reasons(kind: str, data: Mapping[str, Any], mountpoint: str, encryption: Mapping[str, Any] | None
                        ) -> Iterable[str]:
    if kind not in KINDS:
        yield (f"its backend offers it as {kind or 'nothing'}, and a container takes block devices only "
               f"({', '.join(sorted(KINDS))})")
    if encryption or data.get("encrypted"):
        yield "it is encrypted, and a container has no hypervisor to decrypt it; use a volume type without encryption"
    if data.get("access_mode", "rw") != "rw":
        yield ("it may only be read, and the root user of a container cannot be kept from writing to a block device "
               "it sees")
    if data.get("qos_specs"):
        yield ("its type limits its speed at the compute host (consumer front-end), which the engine cannot do for a "
               "block device; limit it at the backend (consumer back-end)")
    if not PATH.fullmatch(mountpoint):
        yield f"{mountpoint!r} is no name of a disk such as /dev/vdb"


def volumes(block_device_info: Mapping[str, Any]) -> tuple[Volume, ...]:
    """Return the volumes of a server, in nova's order.

    Nova keeps volumes with an unfinished attachment, without a connection.

    :raises SpecError: one of them is not supported, or nova requests a disk that a container cannot have
    """
    mapping = driver.block_device_info_get_mapping(block_device_info)
    root = [disk for disk in mapping if disk["boot_index"] == 0]
    if root:
        raise SpecError("The server requests to boot from a volume, but a container's root is a file system of the "
                        "host's storage pool, created from an image: boot from an image, and attach the volume "
                        "additionally.")
    return tuple(volume(disk["connection_info"], disk["mount_device"]) for disk in mapping if disk["connection_info"])


def require_no_swap(flavor: objects.Flavor, block_device_info: Mapping[str, Any]) -> None:
    """Refuse a swap disk.

    :raises SpecError:
    """
    swap = driver.block_device_info_get_swap(block_device_info)
    if flavor.swap or swap["swap_size"]:
        raise SpecError("The server requests a swap disk, but only the host's kernel can swap, not a container: use "
                        "a flavor without swap and with more memory.")


def name_missing(instance: objects.Instance, root: str, disks: Sequence[objects.BlockDeviceMapping]) -> None:
    """Name each disk of a new server in the container, from ``/dev/vdb``, unless the tenant chose a letter.

    The root disk keeps nova's name."""
    used = [root]
    chosen = [disk for disk in disks if disk.device_name]
    for disk in (*chosen, *(disk for disk in disks if not disk.device_name)):
        if disk.device_name != root:
            disk.device_name = next_name(instance, used, disk.device_name)
            disk.save()
            used.append(disk.device_name)


def name_for(instance: objects.Instance, disks: Iterable[objects.BlockDeviceMapping], wanted: str | None) -> str:
    """Return the name of one more disk.

    :param wanted: the tenant's choice, of which only the letter counts; None for the first free name
    """
    used = [disk.device_name for disk in disks if disk.device_name]
    return next_name(instance, [ROOT, *used], wanted)


def next_name(instance: objects.Instance, used: Sequence[str], wanted: str | None) -> str:
    return utils.get_next_device_name(instance, list(used), ROOT, wanted)
