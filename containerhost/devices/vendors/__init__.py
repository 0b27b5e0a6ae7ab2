"""The vendor plug-ins: the project's own, then those that installed packages register.

The project's own are named here and imported directly, so that they work from a plain checkout and cost a probe no
search. Packages add theirs under the entry point group ``containerhost.vendors``, which is also where stevedore looks.
"""

import functools
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from containerhost.devices.model import Device
from containerhost.devices.vendors.amd import Amd
from containerhost.devices.vendors.base import Vendor
from containerhost.devices.vendors.intel import Intel
from containerhost.devices.vendors.net import Net
from containerhost.devices.vendors.nvidia import Nvidia
from containerhost.errors import DeviceError
from containerhost.grants import Grant, GrantOptions

LOG = logging.getLogger(__name__)
GROUP = "containerhost.vendors"
OWN: tuple[type[Vendor], ...] = (Nvidia, Amd, Intel, Net)
SECTION = re.compile(rb"^\[" + re.escape(GROUP.encode()) + rb"\]\s*$(.*?)(?=^\[|\Z)", re.M | re.S)
NODES = re.compile(r"(?:(?!\.{1,2}/)[A-Za-z0-9_.-]{1,64}/){0,4}(?!\.{1,2}$)[A-Za-z0-9_.*?-]{1,64}")
NAME = re.compile(rb"^\s*([^\s=#;]+)\s*=", re.M)


@functools.cache
def load() -> tuple[type[Vendor], ...]:
    """All plug-ins in the order they are asked: the own ones, then others by name. One that fails to load is left out
    and logged, for the others' devices must still be found.

    Searched for once in each process.
    """
    if not any(map(names_others, entry_files())):
        return OWN
    import importlib.metadata  # noqa: PLC0415  (takes longer than the scan, and hardly any host has others)

    names = {vendor.name for vendor in OWN}
    others = sorted((point for point in importlib.metadata.entry_points(group=GROUP) if point.name not in names),
                    key=lambda point: point.name)
    loaded = []
    for point in others:
        try:
            loaded.append(checked(point.load()))
        except Exception:
            LOG.exception("vendor plug-in %s (%s) cannot be loaded", point.name, point.value)
    return (*OWN, *loaded)


def checked(vendor: type[Vendor]) -> type[Vendor]:
    """:raises ValueError: the plug-in names its nodes in a way that could lead out of /dev"""
    for pattern in vendor.nodes:
        if not NODES.fullmatch(pattern):
            raise ValueError(f"{pattern!r} is no pattern of nodes below /dev, such as 'kfd' or 'dri/*'")
    return vendor


def node_patterns() -> tuple[str, ...]:
    """Return what the nodes of all vendors are called below /dev, as patterns of fnmatch."""
    return tuple(sorted({pattern for vendor in load() for pattern in vendor.nodes}))


def node_folders() -> tuple[tuple[str, ...], ...]:
    """Return the directories of those nodes, as components below /dev; /dev itself is the first."""
    return tuple(sorted({(), *(tuple(pattern.split("/")[:-1]) for pattern in node_patterns())}))


def entry_files() -> Iterator[Path]:
    """Where installed packages name their entry points (PyPA's specification of that)."""
    for folder in sys.path:
        for kind in ("dist-info", "egg-info"):
            yield from Path(folder or ".").glob(f"*.{kind}/entry_points.txt")


def names_others(file: Path) -> bool:
    try:
        section = SECTION.search(file.read_bytes())
    except OSError:
        return False  # as without the file, the package has none
    own = {vendor.name.encode() for vendor in OWN}
    return section is not None and not own.issuperset(NAME.findall(section[1]))


def make_grant(device: Device, options: GrantOptions) -> Grant:
    """What a container must get to have ``device``.

    :raises DeviceError: the device cannot be given; the message says why
    """
    vendor = next((vendor for vendor in OWN if vendor.name == device.plugin), None)
    vendor = vendor or next((vendor for vendor in load() if vendor.name == device.plugin), None)
    if vendor is None:
        raise DeviceError(f"device {device.id} was described by vendor plug-in {device.plugin!r}, which is not "
                          f"installed here; install it or one of: {', '.join(vendor.name for vendor in load())}")
    return vendor.grant(device, options)
