# SPDX-License-Identifier: Apache-2.0
"""Name the models of PCI devices by the PCI database of the distribution (package ``pci.ids``, ``hwdata``).

Without a name by the operator, nova's resource class of a device has only its PCI ids: ``CUSTOM_PCI_10DE_20B0``.
"""

import functools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

FILES = (Path("/usr/share/misc/pci.ids"), Path("/usr/share/hwdata/pci.ids"))
"""Where distributions have the database."""

IDS = re.compile(r"CUSTOM_\w*_([0-9A-F]{4})_([0-9A-F]{4})")
"""A resource class that ends with a vendor's and a device's id."""

PRODUCT = re.compile(r"\[(.+)\]")
"""The name by which a chip is sold, as the database has it: ``GA100 [A100 SXM4 40GB]``."""


def model(resource_class: str, files: Iterable[Path] = FILES) -> str | None:
    """Return the name of the model, ``NVIDIA A100 SXM4 40GB``; None if the class has no ids or they are unknown."""
    ids = IDS.fullmatch(resource_class)
    return names(tuple(files)).get((ids[1].lower(), ids[2].lower())) if ids else None


@functools.cache
def names(files: tuple[Path, ...]) -> Mapping[tuple[str, str], str]:
    """Return the names of all models by the ids of vendor and device; none without a database."""
    found = next((file for file in files if file.is_file()), None)
    return parse(found.read_text(errors="replace")) if found else {}


def parse(database: str) -> dict[tuple[str, str], str]:
    """Parse the database: https://pci-ids.ucw.cz. Pure."""
    found, vendor, name = {}, "", ""
    for line in database.splitlines():
        if line.startswith("C "):  # the list of device classes follows that of vendors
            break
        if line and line[0] not in "#\t":
            vendor, _, name = line.partition("  ")
            name = sold(name, name.split(" ")[0])
        elif line.startswith("\t") and line[1:2] != "\t":
            device, _, chip = line[1:].partition("  ")
            found[vendor, device] = f"{name} {sold(chip, chip)}"
    return found


def sold(name: str, otherwise: str) -> str:
    product = PRODUCT.search(name)
    return product[1] if product else otherwise
