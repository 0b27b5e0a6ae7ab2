# SPDX-License-Identifier: Apache-2.0
import testtools

from onedriver.errors import BadInput, DriverError
from onedriver.node import validation


class ChangesTest(testtools.TestCase):
    def test_memory_that_is_in_use_is_not_taken(self) -> None:
        self.assertRaises(DriverError, validation.of_shrinking, "one-1", 1 << 20, 2 << 20)
        validation.of_shrinking("one-1", 2 << 20, 1 << 20)

    def test_snapshots_are_numbers(self) -> None:
        self.assertEqual(7, validation.snapshot_number("7"))
        for text in ("", "../x", "-1", "snap"):
            self.assertRaises(BadInput, validation.snapshot_number, text)
