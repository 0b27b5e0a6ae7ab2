# SPDX-License-Identifier: Apache-2.0
"""Translate between OpenNebula's names of PCI devices and the host's.

The core writes a function's ADDRESS with a colon before the function (``0000:17:00:0``) and accepts any string: so a
slice of a GPU is a device, too, ``0000:17:00:0:mig3`` for GPU instance 3, and ``…:mig3c1`` for its compute instance
1. A slice needs a separate product number, so that a request for a whole GPU does not get a part of one: it is
derived from the slice's profile, ``f`` + compute slices + GB of memory in hexadecimal (``2g.10gb`` is ``f20a``), and
begins with ``e`` for profiles with media engines (``1g.10gb+me``). Other profiles have eight digits (the core reads
32 bits, HostSharePCI.cc): ``f``, the index of the suffix in SUFFIXES, compute slices of the compute instance (0 for
all), those of the GPU instance, and GB in four digits: ``1g.24gb-me`` is ``f3010018``.

A share of a GPU is ``0000:17:00:0:share0``, and its product number ``d000`` and that of the GPU: ``d00020b0``.
"""

import re
from typing import NamedTuple

from onedriver.errors import BadInput

ADDRESS = re.compile(r"(?P<domain>[0-9a-f]{4,8}):(?P<bus>[0-9a-f]{2}):(?P<slot>[01][0-9a-f])[:.](?P<function>[0-7])"
                     r"(:mig(?P<gi>[0-9]{1,3})(c(?P<ci>[0-9]{1,3}))?|:share(?P<share>[0-9]{1,3}))?")
DEVICE_ID = re.compile(r"(?P<function>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
                       r"(/gi(?P<gi>[0-9]+)/ci(?P<ci>[0-9]+)|/share(?P<share>[0-9]+))?")


class PciAddress(NamedTuple):
    """Identify a PCI function, or a slice or share of a GPU, by the names of OpenNebula and of the host.

    :ivar slice: GPU instance and compute instance of a slice; otherwise None
    :ivar share: number of a share of a GPU; otherwise None
    """

    domain: str
    bus: str
    slot: str
    function: str
    slice: tuple[int, int] | None = None
    share: int | None = None

    @property
    def device_id(self) -> str:
        """Return the id in the host's inventory: ``0000:17:00.0``, ``0000:17:00.0/gi3/ci0``."""
        whole = f"{self.domain}:{self.bus}:{self.slot}.{self.function}"
        if self.share is not None:
            return f"{whole}/share{self.share}"
        return whole if self.slice is None else f"{whole}/gi{self.slice[0]}/ci{self.slice[1]}"

    @property
    def address(self) -> str:
        """Return OpenNebula's ADDRESS."""
        return f"{self.domain}:{self.bus}:{self.slot}:{self.function}{self._part}"

    @property
    def short(self) -> str:
        """Return OpenNebula's SHORT_ADDRESS, which lacks the domain only for domain 0."""
        domain = "" if int(self.domain, 16) == 0 else f"{self.domain}:"
        return f"{domain}{self.bus}:{self.slot}.{self.function}{self._part}"

    @property
    def _part(self) -> str:
        if self.share is not None:
            return f":share{self.share}"
        if self.slice is None:
            return ""
        gi, ci = self.slice
        return f":mig{gi}" if ci == 0 else f":mig{gi}c{ci}"


def from_opennebula(text: str) -> PciAddress:
    """Parse an ADDRESS; raise BadInput if no probe of this project reports such."""
    match = ADDRESS.fullmatch(text.lower())
    if match is None:
        raise BadInput(f"PCI address {text[:60]!r} is invalid: 0000:17:00:0 was expected, or 0000:17:00:0:mig3 for a "
                       "slice, 0000:17:00:0:share0 for a share of a GPU")
    part = None if match["gi"] is None else (int(match["gi"]), int(match["ci"] or 0))
    return PciAddress(match["domain"], match["bus"], match["slot"], match["function"], part, number(match["share"]))


def from_device_id(text: str) -> PciAddress:
    """Parse the id of a device; raise BadInput if it is not that of a PCI device."""
    match = DEVICE_ID.fullmatch(text)
    if match is None:
        raise BadInput(f"{text!r} is not an id of a PCI device")
    domain, bus, rest = match["function"].split(":")
    slot, function = rest.split(".")
    part = None if match["gi"] is None else (int(match["gi"]), int(match["ci"]))
    return PciAddress(domain, bus, slot, function, part, number(match["share"]))


def number(text: str | None) -> int | None:
    return None if text is None else int(text)


def share_product(gpu: str) -> str:
    """Return the product number of a share of a GPU from the GPU's own."""
    return f"d000{gpu}"
