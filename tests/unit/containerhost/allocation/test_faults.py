# SPDX-License-Identifier: Apache-2.0
import testtools

from containerhost.allocation import faults
from containerhost.allocation.record import Allocation, Consumer
from containerhost.inventory.scan import scan
from tests.unit.containerhost.hosts import shared

HOLDER = Consumer("nova", "lxd", "c1", "uuid")


class FaultsTest(testtools.TestCase):
    def test_one_record_reads_no_other_device(self) -> None:
        inventory = scan(shared("small"))
        record = Allocation(inventory.devices[0].id, HOLDER)
        wanted = faults.of([record], inventory)
        del inventory.devices  # thousands, and many records are queried one by one
        self.assertEqual(wanted, faults.of([record], inventory))
        self.assertEqual(("0000:ff:00.0: " + faults.GONE,), faults.of([Allocation("0000:ff:00.0", HOLDER)], inventory))
