# SPDX-License-Identifier: Apache-2.0
import fixtures
import testtools

from containerhost.linux import poll


class PollTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.now = 100.0
        self.useFixture(fixtures.MonkeyPatch("containerhost.linux.poll.time", self))

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    def test_wait_asks_at_once_and_once_after_the_timeout(self):
        for timeout, interval, expected in ((0, 1, [100]), (1, 1, [100, 101]), (5, 2, [100, 102, 104, 106])):
            self.now, asked = 100.0, []
            self.assertFalse(poll.wait_until(lambda asked=asked: asked.append(self.now), timeout, interval))
            self.assertEqual(expected, asked)

    def test_wait_ends_when_the_condition_is_met(self):
        self.assertTrue(poll.wait_until(lambda: self.now >= 103, 5, 1))
        self.assertEqual(103, self.now)

    def test_wait_while_returns_the_last_answer(self):
        self.assertEqual("106", poll.wait_while(lambda: str(int(self.now)), 5, 2))
        self.now = 100.0
        self.assertEqual("", poll.wait_while(lambda: "it" if self.now < 102 else "", 5, 1))

    def test_retry_repeats_only_what_may_succeed(self):
        self.assertEqual("done", self.retry([ValueError()]))
        self.assertEqual(102, self.now)
        for error in (TypeError(), ValueError("final")):
            self.assertRaises(type(error), self.retry, [error])
        self.assertEqual(102, self.now)
        self.assertRaises(ValueError, self.retry, [ValueError()] * 9)
        self.assertEqual(108, self.now)

    def retry(self, failures):
        """:param failures: of an action that is done after them"""
        left = iter(failures)

        def act():
            for error in left:
                raise error
            return "done"

        return poll.retry(act, ValueError, 5, 2, lambda error: bool(error.args))
