# SPDX-License-Identifier: Apache-2.0
"""The templates that an operator copies, read as OpenNebula reads them, as the VMs that the core makes of them."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from containerhost.devices.model import Device
from tests.functional_one.node import ROOT
from tests.functional_one.vms import Machine
from tests.functional_onedock.base import own

DIRECTORY = ROOT / "etc/opennebula/onedock/samples"
# template_parser.y: NAME = "value", or NAME = [ NAME = "value", … ]; a backslash keeps a quote from ending a value.
STRING = r'"((?:[^"\\]|\\.)*)"'
ATTRIBUTE = re.compile(rf"\s*([A-Z_0-9]+)\s*=\s*(?:{STRING}|([0-9]+)|\[([^\]]*)\])\s*")
PAIR = re.compile(rf"\s*([A-Z_0-9]+)\s*=\s*{STRING}\s*(?:,|$)")


class Template(NamedTuple):
    """:ivar single: attributes with a value
    :ivar vectors: name and attributes of the others, in order
    """

    single: dict[str, str]
    vectors: list[tuple[str, dict[str, str]]]

    def all(self, name: str) -> list[dict[str, str]]:
        return [values for key, values in self.vectors if key == name]


def read(name: str) -> Template:
    """:raises ValueError: it is no template"""
    return parse((DIRECTORY / name).read_text())


def parse(content: str) -> Template:
    """:raises ValueError: it is no template"""
    text = "".join(line for line in content.splitlines(keepends=True) if not line.startswith("#"))
    found = Template({}, [])
    for key, value, number, vector in pieces(text):
        if vector:
            found.vectors.append((key, dict(pairs(vector))))
        else:
            found.single[key] = value or number
    return found


def pieces(text: str) -> Iterator[tuple[str, ...]]:
    place = 0
    while place < len(text.rstrip()):
        match = ATTRIBUTE.match(text, place)
        if match is None:
            raise ValueError(f"no attribute of a template: {text[place:place + 60]!r}")
        yield match.groups("")
        place = match.end()


def pairs(text: str) -> Iterator[tuple[str, str]]:
    place = 0
    while place < len(text.rstrip()):
        match = PAIR.match(text, place)
        if match is None:
            raise ValueError(f"no attributes: {text[place:]!r}")
        yield match[1], match[2]
        place = match.end()


def machine(template: Template, devices: Sequence[Device], number: int = 1) -> Machine:
    """The VM that the core makes of it.

    :param devices: of the host; a model other than the template's may stand for it
    """
    chosen = []
    for wanted in template.all("PCI"):
        chosen.append(next(device for device in devices if device not in chosen
                           and (device.vendor_id, device.class_code[:4]) == (wanted["VENDOR"], wanted["CLASS"])))
    nics = tuple(range(len(template.all("NIC"))))
    made = Machine(number, template.single["CPU"], memory=int(template.single["MEMORY"]), devices=tuple(chosen),
                   nics=nics, more=own(**{key: value for key, value in template.single.items()
                                          if key.startswith("DOCKER_")}))
    context = [("NETWORK", "YES")] if template.all("CONTEXT") else []
    for nic in nics:
        context += [(f"ETH{nic}_MAC", made.mac(nic)), (f"ETH{nic}_IP", f"10.1.0.{10 * number + nic}")]
    return made.changed(context=tuple(context), disks="".join(disks(template)))


def disks(template: Template) -> Iterator[str]:
    for number, disk in enumerate(template.all("DISK")):
        yield (f"<DISK><DISK_ID>{number}</DISK_ID><TYPE>{disk.get('TYPE', 'FILE')}</TYPE><FORMAT>raw</FORMAT>"
               f"<SIZE>{disk.get('SIZE', '8')}</SIZE></DISK>")
