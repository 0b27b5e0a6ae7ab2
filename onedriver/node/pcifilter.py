# SPDX-License-Identifier: Apache-2.0
"""Select the PCI devices that a node reports, by the three options of OpenNebula's ``pci.conf``.

Source: src/im_mad/remotes/node-probes.d/pci.conf and pci.rb of OpenNebula. Since OpenNebula 7.0 oned itself filters
the reported devices by PCI_FILTER and PCI_SHORT_ADDRESS of the host or its cluster (HostSharePCI.cc).
"""

import dataclasses
import fnmatch
import re
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class PciFilter:
    """Select the PCI devices that a node reports to oned, by id, address and name.

    :ivar ids: ``VENDOR:DEVICE:CLASS``; an asterisk, or an empty or missing part, matches any; several are separated
        by commas
    :ivar short_addresses: in oned's format (SHORT_ADDRESS); empty matches any
    :ivar names: case-insensitive regular expressions for DEVICE_NAME; empty matches any
    """

    ids: Sequence[str] = ("*:*:*",)
    short_addresses: Sequence[str] = ()
    names: Sequence[str] = ()

    def passes(self, ids: Sequence[str], short_address: str, name: str) -> bool:
        """Return whether a device passes all three options; ``ids`` are vendor, product and class."""
        return (any(_match(one, ids) for text in self.ids for one in text.split(","))
                and (not self.short_addresses or short_address in self.short_addresses)
                and (not self.names or any(re.search(one, name, re.IGNORECASE) for one in self.names)))


def _match(wanted: str, ids: Sequence[str]) -> bool:
    parts = [part.strip().lower() or "*" for part in wanted.split(":")]
    return all(fnmatch.fnmatchcase(found, part) for found, part in zip(ids, parts, strict=False))
