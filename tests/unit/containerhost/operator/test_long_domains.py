# SPDX-License-Identifier: Apache-2.0
"""A device of a PCI domain that nova does not know is said where the operator looks."""

import json

import testtools
from click.testing import CliRunner

from containerhost.operator.cli import main
from containerhost.operator.doctor import devices
from tests.unit.containerhost.hosts import Broken
from tests.unit.containerhost.operator.doctor.cases import DoctorCase

LONG = ["10000:5e:00.1", "10000:5e:00.2"]
SAID = "nova offers no device of a PCI domain above ffff"


def lengthen(tree: Broken) -> None:
    """Move all virtual functions to a long domain, as of Volume Management Device."""
    directory = tree.path("/sys/bus/pci/devices")
    for address in LONG:
        short = address.removeprefix("1")
        function = tree.function(short)
        function.rename(function.with_name(address))
        (directory / short).unlink()
        (directory / address).symlink_to(f"../../../{function.with_name(address).relative_to(tree.path('/sys'))}")


class LongDomainTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.tree = self.useFixture(Broken("cards"))
        lengthen(self.tree)

    def run_with(self, *arguments: str) -> str:
        result = CliRunner().invoke(main, [*arguments, "--root", str(self.tree.root)])
        self.assertEqual(0, result.exit_code, result.output)
        return result.stdout

    def test_list_says_it(self) -> None:
        self.assertIn(f"{SAID}: {' '.join(LONG)}", self.run_with("list", "--short"))

    def test_suggested_configuration_says_it_and_has_no_alias(self) -> None:
        text = self.run_with("config", "nova")
        self.assertIn(f"# {LONG[0]}: {SAID}", text)
        self.assertNotIn("alias =", text)
        told = json.loads(self.run_with("config", "nova", "--json"))
        self.assertEqual((LONG, []), (told["beyond_nova"], told["alias"]))


class DoctorTest(DoctorCase):
    host_name = "cards"

    def test_doctor_says_it(self) -> None:
        lengthen(self.tree)
        self.assertEqual(SAID, self.problems(devices.check)[LONG[0]])
