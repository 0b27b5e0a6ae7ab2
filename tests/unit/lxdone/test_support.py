# SPDX-License-Identifier: Apache-2.0
"""The tables of the manual say what the driver does: nothing is missing in them, and nothing in them is untrue."""

import ast
from pathlib import Path

import testtools

from lxdone import lcm_states, translate
from lxdone.vmm import Vmm
from onedriver import actions, vm

ROOT = Path(__file__).parents[3]
PAGE = "doc/source/opennebula-support.md"
#: What is read of a VM that the core or another driver wrote, and no person.
OF_THE_CORE = frozenset({
    "ID", "STIME", "LCM_STATE", "DEPLOY_ID", "TEMPLATE", "USER_TEMPLATE", "HISTORY_RECORDS", "HISTORY", "SEQ",
    "DS_ID", "HOSTNAME", "NIC", "PCI", "DISK", "SNAPSHOT", "TOPOLOGY", "NUMA_NODE", "CPUS", "MEMORY_NODE_ID",
    "DISK_ID", "NIC_ID", "PCI_ID", "HYPERVISOR_ID", "ATTACH", "ADDRESS", "TARGET",
    "BRIDGE", "BRIDGE_TYPE", "CLONE", "TM_MAD", "DRIVER", "ORIGINAL_SIZE", "UID", "HPC"})
#: Whole elements, which are not read attribute by attribute.
ELEMENTS = frozenset({"CONTEXT"})
#: How a device is asked for; the driver looks at ADDRESS, which the core chose by it.
BY_THE_CORE = frozenset({"SHORT_ADDRESS"})
READS = frozenset({"text", "required", "matching", "integer", "number", "fraction", "flag", "choice", "mac",
                   "interface", "section", "sections"})
BY_FUNCTION = frozenset({"hex4", "product", "guid", "vlans"})


def table(heading: str) -> dict[str, str]:
    """The first table below a heading: what lxdone does, by name."""
    text = (ROOT / PAGE).read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()
            if line.startswith("| `")]
    assert rows, heading
    assert len({row[0] for row in rows}) == len(rows), "a row is there twice"
    return {row[0].strip("`"): row[1] for row in rows}


def read_keys() -> set[str]:
    """Names of everything that is read of a VM."""
    found = set[str]()
    for node in ast.walk(ast.parse(Path(vm.__file__).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in READS | BY_FUNCTION:
                found |= {word.value for word in node.args if isinstance(word, ast.Constant)
                          and isinstance(word.value, str) and word.value.isupper()}
    return found | set(vm.SPEEDS) | {translate.NESTING, translate.PRIVILEGED, translate.LIBRARIES,
                                      translate.PROCESS_LIMIT, translate.LIVE_MIGRATION}


class SupportTest(testtools.TestCase):
    def test_every_action_is_told_and_every_told_action_is(self) -> None:
        self.assertEqual({*actions.ARGUMENTS, *actions.IN_SCRIPTS}, set(table("Actions")), f"correct {PAGE}")

    def test_what_is_done_the_driver_has_and_what_is_not_it_refuses(self) -> None:
        for name, told in table("Actions").items():
            with self.subTest(name):
                self.assertTrue(told.startswith(("yes", "no: ")), f"{PAGE}: begin {name} with yes or no")
                self.assertEqual(told.startswith("no"), name in lcm_states.UNSUPPORTED, f"correct {name} in {PAGE}")
                done = name in actions.IN_SCRIPTS or callable(getattr(Vmm, name, None))
                self.assertEqual(told.startswith("yes"), done, name)

    def test_every_attribute_that_is_read_is_told(self) -> None:
        told = {name.rpartition("/")[2] for name in table("Attributes")}
        self.assertEqual(set(), read_keys() - OF_THE_CORE - told,
                         f"the driver reads these: add them to the table of attributes in {PAGE}")

    def test_what_is_told_as_supported_is_read_and_what_is_not_is_not(self) -> None:
        known = read_keys() | ELEMENTS | BY_THE_CORE
        for name, told in table("Attributes").items():
            with self.subTest(name):
                self.assertTrue(told.startswith(("yes", "no")), f"{PAGE}: begin {name} with yes or no")
                self.assertEqual(told.startswith("yes"), name.rpartition("/")[2] in known, f"correct {name} in {PAGE}")
