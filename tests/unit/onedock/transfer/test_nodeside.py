from pathlib import Path
from unittest import mock

import fixtures
import testtools

from onedock.transfer import nodeside
from onedriver.errors import DriverError

DISK = Path("/datastores/0/1/disk.1")


class LockTest(testtools.TestCase):
    """With a program in the place of ``onedock lock``, whose half hour is too long for a test."""

    def holder(self, script: str) -> None:
        self.useFixture(fixtures.MockPatchObject(nodeside, "engine_is_there", return_value=True))
        self.useFixture(fixtures.MockPatchObject(nodeside, "root_command", return_value=["sh", "-c", script]))

    def test_what_was_done_without_the_lock_has_failed(self) -> None:
        done = mock.Mock()
        self.holder("echo '{\"used\": false}'; exit 1")

        def act() -> None:
            with nodeside.locked(DISK):
                done()

        self.assertIn("may have been used meanwhile", str(self.assertRaises(DriverError, act)))
        done.assert_called_once_with()

    def test_the_lock_ends_with_what_it_was_for(self) -> None:
        self.holder("echo '{\"used\": true}'; read line; exit 0")
        with nodeside.locked(DISK) as used:
            self.assertTrue(used)
        with testtools.ExpectedException(ZeroDivisionError), nodeside.locked(DISK):
            raise ZeroDivisionError
