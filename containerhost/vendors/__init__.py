# SPDX-License-Identifier: Apache-2.0
"""Find the vendor plug-ins that installed packages register as entry points of ``containerhost.vendors``.

Plug-ins are imported at their first use: most actions of OpenNebula need no device.
"""

import functools
import logging
import re
from typing import TYPE_CHECKING

from containerhost.devices.grants import Grant, GrantOptions
from containerhost.devices.model import Device
from containerhost.errors import DeviceError
from containerhost.vendors.base import Use, Vendor

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from stevedore.extension import Extension

LOG = logging.getLogger(__name__)
GROUP = "containerhost.vendors"
NODES = re.compile(r"(?:(?!\.{1,2}/)[A-Za-z0-9_.-]{1,64}/){0,4}(?!\.{1,2}$)[A-Za-z0-9_.*?-]{1,64}")


@functools.cache
def load() -> tuple[type[Vendor], ...]:
    """Return all plug-ins in order: those of this package, then others, each by name.

    Searched once in each process. A plug-in that fails to load is skipped and logged, so that the devices of others
    are found. A second one of the same name is ignored.

    :raises DeviceError: this package's own plug-ins are not registered, so none of their devices would be found
    """
    from stevedore import ExtensionManager

    found: dict[str, type[Vendor]] = {}
    extensions = ExtensionManager(GROUP, on_load_failure_callback=_log_failure)
    for extension in sorted(extensions, key=lambda one: (not _is_own(one), one.name)):
        try:
            found.setdefault(extension.name, checked(extension.plugin))
        except ValueError as error:
            _log_failure(extensions, extension.entry_point, error)
    if not any(map(_is_own, extensions)):
        raise DeviceError(f"no vendor plug-in of nova-lxd-ext is registered (entry points of {GROUP}): its package "
                          "metadata is missing; install it with pip, also from a checkout (pip install -e .)")
    return tuple(found.values())


def _is_own(extension: "Extension") -> bool:
    return bool(extension.module_name.startswith(f"{__name__}."))


def _log_failure(_: object, point: "EntryPoint", error: Exception) -> None:
    LOG.error("vendor plug-in %s (%s) cannot be loaded: %s", point.name, point.value, error, exc_info=error)


def checked(vendor: type[Vendor]) -> type[Vendor]:
    """Check a plug-in's node patterns.

    :raises ValueError: a pattern could match outside /dev
    """
    for pattern in vendor.nodes:
        if not NODES.fullmatch(pattern):
            raise ValueError(f"{pattern!r} is not a pattern of nodes below /dev, such as 'kfd' or 'dri/*'")
    return vendor


def of(device: Device) -> type[Vendor]:
    """Return the plug-in that described the device.

    :raises DeviceError: the plug-in is not installed
    """
    vendor = next((vendor for vendor in load() if vendor.name == device.plugin), None)
    if vendor is None:
        raise DeviceError(f"device {device.id} was described by vendor plug-in {device.plugin!r}, which is not "
                          f"installed here; install it or one of: {', '.join(vendor.name for vendor in load())}")
    return vendor


def make_grant(device: Device, options: GrantOptions) -> Grant:
    """Return the grant of ``device``: all that a container needs to have it.

    :raises DeviceError: the device cannot be granted; the message has the reason
    """
    return of(device).grant(device, options)


def pci_vendor(device: Device) -> str:
    """Return the device's vendor as in the PCI database, or the vendor id if its plug-in does not know it."""
    return of(device).pci_vendors.get(device.vendor_id, device.vendor_id)


def usage() -> dict[str, Use]:
    """Return the current use of each of this host's GPUs and slices by device id, as reported by its vendor."""
    return {device_id: use for vendor in load() for device_id, use in vendor.usage().items()}


def node_patterns() -> tuple[str, ...]:
    """Return the patterns of all vendors' nodes below /dev, for fnmatch."""
    return tuple(sorted({pattern for vendor in load() for pattern in vendor.nodes}))


def node_directories() -> tuple[tuple[str, ...], ...]:
    """Return the directories of those nodes as components below /dev, with /dev itself first."""
    return tuple(sorted({(), *(tuple(pattern.split("/")[:-1]) for pattern in node_patterns())}))
