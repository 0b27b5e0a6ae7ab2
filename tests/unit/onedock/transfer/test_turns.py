# SPDX-License-Identifier: Apache-2.0
import time
from pathlib import Path

import fixtures
import testtools

from onedock.transfer import turns
from onedriver.errors import DriverError


class TurnsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.MonkeyPatch("onedock.transfer.turns.directory", lambda: directory))

    def began(self, seconds: float) -> None:
        self.useFixture(fixtures.MonkeyPatch("onedock.transfer.turns.began", lambda: seconds))

    def take(self, vm: int, *, deletes: bool = False) -> None:
        with turns.turn(vm, deletes=deletes):
            pass

    def test_an_action_that_began_before_the_deletion_does_nothing(self) -> None:
        self.began(20)
        self.take(7, deletes=True)
        self.began(10)
        self.assertRaises(DriverError, self.take, 7)
        self.take(6)
        self.take(8)
        self.began(30)
        self.take(7)

    def test_a_clock_that_is_set_back_refuses_no_later_action(self) -> None:
        now = time.time()
        self.useFixture(fixtures.MonkeyPatch("time.time", lambda: now + 3600))
        self.take(7, deletes=True)
        self.useFixture(fixtures.MonkeyPatch("time.time", lambda: now))
        self.take(7)

    def test_a_deletion_before_the_host_started_is_over(self) -> None:
        self.began(5000)
        self.take(7, deletes=True)
        self.useFixture(fixtures.MonkeyPatch("onedock.transfer.turns.boot", lambda: b"2" * 16))
        self.began(20)
        self.take(7)
