# SPDX-License-Identifier: Apache-2.0
"""Build the device metadata with the tags of a tenant's ports and volumes: section ``devices``."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nova import objects
from nova.network import model

#: What :func:`refresh` is, for those that are given it.
PublishTags = Callable[[Any, objects.Instance, model.NetworkInfo], None]


def refresh(context: Any, instance: objects.Instance, ports: Iterable[Mapping[str, Any]]) -> None:
    """Set the device metadata for the metadata service and a config drive; nova saves it.

    :param ports: the server's VIFs (nova.network.model.VIF), one that is being attached included
    """
    instance.device_metadata = build(
        objects.VirtualInterfaceList.get_by_instance_uuid(context, instance.uuid), ports,
        objects.BlockDeviceMappingList.get_by_instance_uuid(context, instance.uuid))


def attaching(context: Any, instance: objects.Instance, vif: model.VIF) -> None:
    """Add the metadata of a port that is being attached to a running server, whose guest may read it immediately.

    If the attachment fails, nova or the next call removes it."""
    known = {port["id"]: port for port in (*instance.get_network_info(), vif)}
    refresh(context, instance, known.values())
    instance.save()


def build(interfaces: Iterable[objects.VirtualInterface], ports: Iterable[Mapping[str, Any]],
          disks: Iterable[objects.BlockDeviceMapping]) -> objects.InstanceDeviceMetadata | None:
    """Build the metadata of devices. Pure.

    :returns: None if there are none
    """
    tags = {record.uuid: record.tag for record in interfaces}
    found: Sequence[objects.DeviceMetadata] = [
        *(_port(port, tags.get(port["id"])) for port in ports if tags.get(port["id"]) or _vlan(port) is not None),
        *(_disk(disk) for disk in disks if disk.tag)]
    return objects.InstanceDeviceMetadata(devices=found) if found else None


def _port(port: Mapping[str, Any], tag: str | None) -> objects.NetworkInterfaceMetadata:
    profile = port.get("profile") or {}
    # A veth has no bus address; a network function has the same one in the container's /sys as on the host.
    bus = {"bus": objects.PCIDeviceBus(address=profile["pci_slot"])} if profile.get("pci_slot") else {}
    vlan = {} if _vlan(port) is None else {"vlan": _vlan(port)}
    tags = {"tags": [tag]} if tag else {}
    trusted = str(profile.get("trusted", False)).lower() == "true"
    return objects.NetworkInterfaceMetadata(mac=port["address"], vf_trusted=trusted, **bus, **vlan, **tags)


def _vlan(port: Mapping[str, Any]) -> int | None:
    """Return the VLAN of a direct port; that of any other port ends on the host."""
    vlan = (port.get("details") or {}).get("vlan")
    return int(vlan) or None if vlan else None


def _disk(disk: objects.BlockDeviceMapping) -> objects.DiskMetadata:
    """Return the metadata of a disk: a volume is a block device in the container, other disks are file systems."""
    path = {"path": disk.device_name} if disk.volume_id and disk.device_name else {}
    return objects.DiskMetadata(tags=[disk.tag], serial=disk.volume_id, **path)
