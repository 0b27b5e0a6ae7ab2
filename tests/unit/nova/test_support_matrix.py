# SPDX-License-Identifier: Apache-2.0
"""The support matrix in the manual says what the driver does: nothing is missing in it, and nothing in it is untrue."""

import inspect

import testtools
from nova.virt import driver

from nova_lxd_ext import unsupported
from nova_lxd_ext.driver import LXDDriver
from tests.unit.nova.test_driver import NEWEST
from tools import supportmatrix

FILE = "doc/source/support-matrix.yaml"


def public_methods(of: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(of, inspect.isroutine) if not name.startswith("_")}


NOVA = public_methods(driver.ComputeDriver)


def owner(name: str) -> type:
    """The class whose method of that name the driver uses."""
    return next(kind for kind in LXDDriver.__mro__ if name in vars(kind))


class MatrixTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.matrix = supportmatrix.load()
        if not NEWEST:  # the matrix is that of the latest nova
            self.matrix["methods"] = {name: entry for name, entry in self.matrix["methods"].items() if name in NOVA}

    def test_every_method_of_novas_driver_is_told(self) -> None:
        self.assertEqual(NOVA, set(self.matrix["methods"]))

    def test_every_status_is_one_of_three_and_has_its_reason(self) -> None:
        for name, entry in self.matrix["methods"].items():
            with self.subTest(name):
                self.assertIn(entry["status"], supportmatrix.STATUSES)
                self.assertEqual(entry["status"] == "done", "reason" not in entry,
                                 f"{FILE}: {name}: a reason is what a refusal or an absence has, and nothing else")
                if entry.get("by") == "nova" and entry["status"] == "done":
                    self.assertTrue(entry.get("note"), f"{FILE}: {name}: say why nova's own method is right")

    def test_what_is_done_the_driver_has(self) -> None:
        for name, entry in self.matrix["methods"].items():
            with self.subTest(name):
                own = owner(name) not in (driver.ComputeDriver, unsupported.UnsupportedMethods)
                expected = entry["status"] == "done" and entry.get("by") != "nova"
                self.assertEqual(expected, own, f"the driver {'has' if own else 'lacks'} {name}: correct its entry in "
                                                f"{FILE}")

    def test_what_is_refused_is_refused_with_a_reason(self) -> None:
        for name, entry in self.matrix["methods"].items():
            with self.subTest(name):
                expected = entry["status"] != "done" and entry.get("by") != "nova"
                self.assertEqual(expected, owner(name) is unsupported.UnsupportedMethods, f"{FILE}: {name}")

    def test_capabilities_are_the_drivers(self) -> None:
        told = self.matrix["capabilities"]
        self.assertEqual(LXDDriver.capabilities, {name: entry["value"] for name, entry in told.items()},
                         f"correct {FILE}")
        self.assertEqual([], [name for name, entry in told.items() if not entry["value"] and not entry.get("reason")])

    def test_the_page_tells_all_of_it(self) -> None:
        page = supportmatrix.page(self.matrix)
        for name, entry in (self.matrix["methods"] | self.matrix["capabilities"]).items():
            with self.subTest(name):
                (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
                self.assertIn(entry.get("reason", ""), row)
