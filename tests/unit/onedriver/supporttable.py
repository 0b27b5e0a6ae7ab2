# SPDX-License-Identifier: Apache-2.0
"""The tables of what a driver of OpenNebula supports, held against the driver: a mixin for its unit tests.

A row is ``| `name` | this driver | in-tree LXC | in-tree KVM | remark |``, each answer one of :data:`ANSWERS`.
Import the module, not its class.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, NamedTuple

import testtools

from onedriver import actions
from onedriver.errors import BadInput, NotSupported

ROOT = Path(__file__).parents[3]
ANSWERS = frozenset({"yes", "no", "refused"})
ROW = re.compile(r"\| `(?P<name>[^`]+)` \|(?P<cells>.*)\|")


class Row(NamedTuple):
    """:ivar own: ``yes``, ``refused`` (it fails with a reason and changes nothing) or ``no`` (it has no effect)
    """

    own: str
    lxc: str
    kvm: str
    remark: str


def rows(page: str, heading: str) -> dict[str, tuple[str, ...]]:
    """Return the table below a heading: cells by name. A name that is there twice is a mistake in the page."""
    _, _, rest = page.partition(f"\n## {heading}\n")
    found: dict[str, tuple[str, ...]] = {}
    for line in rest.partition("\n## ")[0].splitlines():
        match = ROW.fullmatch(line)
        if match:
            if match["name"] in found:
                raise AssertionError(f"{match['name']} is told twice below {heading!r}")
            found[match["name"]] = tuple(cell.strip() for cell in match["cells"].split("|"))
    return found


class SupportContract(testtools.TestCase):
    """:cvar page: the manual's
    :cvar driver: its name, and that of its directory of scripts
    :cvar vmm: the class with its actions
    :cvar unsupported: why, by the action that it refuses
    :cvar samples: by attribute, its element in the template of a VM
    :cvar without: the same template without it, where that is not nothing
    """

    page: ClassVar[str]
    driver: ClassVar[str]
    vmm: ClassVar[type]
    unsupported: ClassVar[Mapping[str, str]]
    samples: ClassVar[Mapping[str, str]]
    without: ClassVar[Mapping[str, str]] = {}
    effect: ClassVar[Callable[[str], object]]

    def told(self, heading: str) -> dict[str, Row]:
        page = (ROOT / "doc/source" / self.page).read_text(encoding="utf-8")
        return {name: Row(*cells) for name, cells in rows(page, heading).items()}

    def test_every_script_of_a_vm_is_told_as_it_is(self) -> None:
        told = self.told("Actions of a VM")
        directory = ROOT / "etc/opennebula/remotes/vmm" / self.driver
        self.assertEqual({actions.LOCAL_NAMES.get(file.name, file.name) for file in directory.iterdir()}, set(told))
        for name, row in told.items():
            done = name in actions.IN_SCRIPTS or hasattr(self.vmm, name)
            expected = "refused" if name in self.unsupported else "yes" if done else "no"
            self.assertEqual(expected, row.own, f"{name}: correct {self.page}")

    def test_every_attribute_is_told_as_it_is(self) -> None:
        told = self.told("Attributes of a template")
        self.assertEqual(set(self.samples), set(told))
        for name, row in told.items():
            self.assertEqual(self.answer(name), row.own, f"{name}: correct {self.page}")

    def answer(self, attribute: str) -> str:
        """Compare the translation of a VM with the attribute to that of one without."""
        before = type(self).effect(self.without.get(attribute, ""))
        try:
            after = type(self).effect(self.samples[attribute])
        except (NotSupported, BadInput):
            return "refused"
        return "yes" if after != before else "no"

    def test_every_answer_is_a_known_one_and_every_refusal_has_its_remark(self) -> None:
        for heading in ("Actions of a VM", "Attributes of a template"):
            for name, row in self.told(heading).items():
                self.assertEqual(set(), {row.own, row.lxc, row.kvm} - ANSWERS, name)
                self.assertTrue(row.own == "yes" or row.remark, f"{name}: say why, or what to do instead")
