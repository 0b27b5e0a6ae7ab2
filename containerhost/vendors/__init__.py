# SPDX-License-Identifier: Apache-2.0
"""Find the vendor plug-ins: those of this package, then those that installed packages register.

Packages register theirs as entry points of the group ``containerhost.vendors``. The plug-ins of this package are
registered there too, for other tools, but imported from here: they work in a checkout that has no package metadata.

Plug-ins are imported when they are first asked for: most actions of OpenNebula look for no device.
"""

import functools
import logging
import re

from containerhost.devices.model import Device
from containerhost.errors import DeviceError
from containerhost.grants import Grant, GrantOptions
from containerhost.vendors.base import Use, Vendor

LOG = logging.getLogger(__name__)
GROUP = "containerhost.vendors"
NODES = re.compile(r"(?:(?!\.{1,2}/)[A-Za-z0-9_.-]{1,64}/){0,4}(?!\.{1,2}$)[A-Za-z0-9_.*?-]{1,64}")


@functools.cache
def own() -> tuple[type[Vendor], ...]:
    """Return the plug-ins of this package, in the order in which they are asked."""
    from containerhost.vendors.amd.vendor import Amd
    from containerhost.vendors.intel.vendor import Intel
    from containerhost.vendors.net.vendor import Net
    from containerhost.vendors.nvidia.vendor import Nvidia

    return (Nvidia, Amd, Intel, Net)


@functools.cache
def load() -> tuple[type[Vendor], ...]:
    """Return all plug-ins in the order in which they are asked: the own ones, then others by name.

    Searched for once in each process. A plug-in that fails to load is left out and logged: the devices of the others
    must still be found.
    """
    import importlib.metadata

    names = {vendor.name for vendor in own()}
    others = sorted((point for point in importlib.metadata.entry_points(group=GROUP) if point.name not in names),
                    key=lambda point: point.name)
    loaded = []
    for point in others:
        try:
            loaded.append(checked(point.load()))
        except Exception:
            LOG.exception("vendor plug-in %s (%s) cannot be loaded", point.name, point.value)
    return (*own(), *loaded)


def checked(vendor: type[Vendor]) -> type[Vendor]:
    """Check a plug-in's node patterns.

    :raises ValueError: the plug-in names its nodes in a way that could lead out of /dev
    """
    for pattern in vendor.nodes:
        if not NODES.fullmatch(pattern):
            raise ValueError(f"{pattern!r} is no pattern of nodes below /dev, such as 'kfd' or 'dri/*'")
    return vendor


def of(device: Device) -> type[Vendor]:
    """Return the plug-in that described the device.

    :raises DeviceError: it is not installed
    """
    # The own ones first: most calls then need no search for others.
    vendor = next((vendor for vendor in own() if vendor.name == device.plugin), None)
    vendor = vendor or next((vendor for vendor in load() if vendor.name == device.plugin), None)
    if vendor is None:
        raise DeviceError(f"device {device.id} was described by vendor plug-in {device.plugin!r}, which is not "
                          f"installed here; install it or one of: {', '.join(vendor.name for vendor in load())}")
    return vendor


def make_grant(device: Device, options: GrantOptions) -> Grant:
    """Return what a container must get to have ``device``.

    :raises DeviceError: the device cannot be given; the message says why
    """
    return of(device).grant(device, options)


def pci_vendor(device: Device) -> str:
    """Return what the PCI database calls the device's vendor, or the vendor's id if its plug-in does not know."""
    return of(device).pci_vendors.get(device.vendor_id, device.vendor_id)


def usage() -> dict[str, Use]:
    """Return how each of this host's GPUs and slices is used now, by device id, where its vendor tells."""
    return {device_id: use for vendor in load() for device_id, use in vendor.usage().items()}


def node_patterns() -> tuple[str, ...]:
    """Return what the nodes of all vendors are called below /dev, as patterns of fnmatch."""
    return tuple(sorted({pattern for vendor in load() for pattern in vendor.nodes}))


def node_directories() -> tuple[tuple[str, ...], ...]:
    """Return the directories of those nodes, as components below /dev; /dev itself is the first."""
    return tuple(sorted({(), *(tuple(pattern.split("/")[:-1]) for pattern in node_patterns())}))
