# SPDX-License-Identifier: Apache-2.0
"""Scan a host's kernel files into the inventory of devices for its containers."""

import functools
import logging
from collections.abc import Callable, Collection, Iterable, Iterator

from containerhost import vendors
from containerhost.devices import pci
from containerhost.devices.health.kernellog import Log
from containerhost.devices.model import PARTS, Device, Kind, PciFunction
from containerhost.errors import DeviceNotFound
from containerhost.inventory import sharing, taints
from containerhost.linux.sysfs import Host
from containerhost.vendors import kernellog
from containerhost.vendors.base import Vendor
from containerhost.vendors.base import device as describe_plainly

LOG = logging.getLogger(__name__)


class Inventory:
    """Hold a host's devices at one moment, in the order of their ids."""

    def __init__(self, devices: tuple[Device, ...]) -> None:
        self.devices = tuple(sorted(devices, key=lambda device: device.id))
        self._by_id = {device.id: device for device in self.devices}
        self._children: dict[str, list[Device]] = {}
        for device in self.devices:
            if device.parent:
                self._children.setdefault(device.parent, []).append(device)

    def __contains__(self, name: str) -> bool:
        return name in self._by_id

    def get(self, name: str) -> Device:
        """Return the device with this id; an address names the whole function.

        :raises DeviceNotFound: there is none
        """
        device = self._by_id.get(name.lower())
        if device is None and (whole := f"0000:{name.lower()}") in self._by_id:
            raise DeviceNotFound(f"this host has no device {name}: PCI addresses begin with their domain: {whole}")
        if device is None:
            raise DeviceNotFound(f"this host has no device {name}: it has {len(self.devices)}, which `containerhost "
                                 "list` shows; a former card may have fallen off the bus or been removed")
        return device

    def by_address(self, address: str) -> tuple[Device, ...]:
        """Return the function at ``address`` and its parts; empty when there is none."""
        found = self._by_id.get(address.lower())
        return (found, *self._parts(found)) if found else ()

    def related(self, device: Device) -> tuple[Device, ...]:
        """Return the devices that exclude this one: the whole that it is part of, and its parts.

        Siblings (two VFs of one card, two slices of one GPU) do not exclude each other.
        """
        found: dict[str, Device] = {}
        parent = device.parent
        while parent and parent not in found and parent in self._by_id:
            found[parent] = self._by_id[parent]
            parent = found[parent].parent
        below = list(self._children.get(device.id, ()))
        while below:
            part = below.pop()
            if part.id not in found:
                found[part.id] = part
                below += self._children.get(part.id, ())
        found.pop(device.id, None)
        return tuple(sorted(found.values(), key=lambda device: device.id))

    def _parts(self, gpu: Device) -> Iterator[Device]:
        return (part for part in self._children.get(gpu.id, ()) if part.kind in PARTS)


def scan(host: Host | None = None) -> Inventory:
    """Return all devices of the host; needs no privileges and opens no device's node.

    Broken hardware is described with complaints, never raised."""
    return HostView(host).inventory


class HostView:
    """Read the host's devices for one operation: scan once, at the first use, and then single devices.

    Passed down through the operation. Not thread-safe.

    :param untainted: ids of devices whose taints are disregarded
    """

    def __init__(self, host: Host | None = None, log: Callable[[Host], Log] = kernellog.read,
                 untainted: Collection[str] = ()) -> None:
        self._host = host or Host()
        self._log = log
        self._untainted = untainted

    @functools.cached_property
    def inventory(self) -> Inventory:
        return Inventory(_devices(self._host, pci.functions(self._host, self._log(self._host)), self._untainted))

    def refresh(self, device_ids: Iterable[str]) -> Inventory:
        """Read these devices again, with all others at their PCI addresses; scan if there was no scan yet.

        Called under the devices' locks, because another process may have changed them since, and after each change."""
        addresses = {device_id.partition("/")[0] for device_id in device_ids}
        if addresses and "inventory" in vars(self):
            log = self._log(self._host)
            read = (pci.function(self._host, address, log) for address in sorted(addresses))
            kept = (device for device in self.inventory.devices if device.address not in addresses)
            self.inventory = Inventory((*kept, *_devices(self._host, filter(None, read), self._untainted)))
        return self.inventory


def _devices(host: Host, functions: Iterable[PciFunction], untainted: Collection[str] = ()) -> tuple[Device, ...]:
    plugins = [vendor(host) for vendor in vendors.load()]
    found = tuple(device for function in functions for device in _describe(plugins, function))
    decided = taints.read(host)
    return tuple(taints.tainted(sharing.divided(taints.tolerant(found, decided), sharing.read(host)),
                                taints.without(decided, untainted)))


def _describe(plugins: list[Vendor], function: PciFunction) -> tuple[Device, ...]:
    plugin = next((plugin for plugin in plugins if plugin.claims(function)), None)
    if plugin is None:
        return ()
    try:
        return plugin.describe(function)
    except Exception as error:
        # An error in one plug-in must neither hide other devices nor make its device look healthy.
        LOG.exception("vendor plug-in %s cannot describe %s", plugin.name, function.address)
        kind = Kind.NET if function.class_code.startswith(pci.NETWORK) else Kind.GPU
        trouble = (*function.health, f"vendor plug-in {plugin.name} cannot describe it: {error!r}")
        return (describe_plainly(function, kind, plugin.name, health=trouble),)
