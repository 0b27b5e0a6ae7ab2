# SPDX-License-Identifier: Apache-2.0
import dataclasses
from typing import Any

import testtools

from containerhost.errors import DeviceHeld, DeviceNotFound, SpecError
from containerhost.inventory.scan import Inventory, scan
from containerhost.operator.vfs import wanted
from containerhost.operator.vfs.plan import Change, plan
from tests.unit.containerhost.hosts import shared

CARD, OTHER, VF = "0000:5e:00.0", "0000:d8:00.1", "0000:5e:00.2"


def changed(**values: Any) -> Inventory:
    """The host "mixed" with one function as it is not."""
    return Inventory(tuple(dataclasses.replace(device, **values) if device.id == VF else device
                           for device in scan(shared("mixed")).devices))


class WantedTest(testtools.TestCase):
    def test_numbers(self) -> None:
        self.assertEqual({CARD: 8, OTHER: 0}, wanted.counts({CARD: "8", OTHER: "0"}))

    def test_what_is_no_number(self) -> None:
        for value in ("", "-1", "many", "1.5", "999999", ["8"], {"vfs": "8"}, None):
            self.assertIn("such as 8", str(self.assertRaises(SpecError, wanted.counts, {CARD: value})))


class PlanTest(testtools.TestCase):
    def test_only_what_differs(self) -> None:
        found = plan(scan(shared("mixed")), {CARD: 4, OTHER: 8}, ())
        self.assertEqual((Change(CARD, 4, 4), Change(OTHER, 0, 8)), found)
        self.assertEqual([f"{CARD}: 4 virtual functions, as wanted: nothing to do",
                          f"{OTHER}: 8 virtual functions instead of 0"], list(map(str, found)))

    def test_functions_of_free_cards_may_go(self) -> None:
        for count in (0, 2, 8):
            self.assertEqual((Change(CARD, 4, count),), plan(scan(shared("mixed")), {CARD: count}, ()))

    def test_functions_in_use_keep_the_number(self) -> None:
        for inventory, held, words in (
                (changed(), (VF,), "a container has it"),
                (changed(netdev=None, netdev_away=True), (), "its interface is in another network namespace"),
                (changed(host_use=("ib0 has addresses",)), (), "the host uses it: ib0 has addresses"),
                (changed(driver="vfio-pci"), (), "vfio-pci keeps it")):
            for count in (0, 2, 8):
                error = self.assertRaises(DeviceHeld, plan, inventory, {CARD: count}, held)
                self.assertIn(f"{VF} ({words}", str(error))
            self.assertEqual((Change(CARD, 4, 4),), plan(inventory, {CARD: 4}, held))

    def test_what_cannot_have_functions(self) -> None:
        for address, count, error, words in (
                ("0000:99:00.0", 1, DeviceNotFound, "no device"), (VF, 1, SpecError, "not a physical function"),
                ("0000:3b:00.0", 1, SpecError, "not a physical function"), (CARD, 9, SpecError, "can have 8")):
            self.assertIn(words, str(self.assertRaises(error, plan, scan(shared("mixed")), {address: count}, ())))
