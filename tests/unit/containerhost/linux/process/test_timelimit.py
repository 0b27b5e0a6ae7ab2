# SPDX-License-Identifier: Apache-2.0
import threading

import fixtures
import testtools

from containerhost.linux.process.timelimit import StillRunning, within

TIMEOUT = 60  # s that nothing here takes


class WithinTest(testtools.TestCase):
    def test_results_and_errors_pass(self) -> None:
        self.assertEqual(7, within(TIMEOUT, "count", lambda: 7))
        error = self.assertRaises(ZeroDivisionError, within, TIMEOUT, "divide", lambda: 1 // 0)
        self.assertIn("division", str(error))

    def test_an_error_that_is_a_time_out_of_the_calls_own_is_told_as_it_is(self) -> None:
        def own() -> None:
            raise TimeoutError("the array did not answer")
        self.assertIn("array", str(self.assertRaises(TimeoutError, within, TIMEOUT, "connect", own)))

    def test_a_call_without_an_end_ends(self) -> None:
        gone, undone = threading.Event(), threading.Event()
        results: list[str] = []

        def call() -> str:
            gone.wait(TIMEOUT)
            return "late"

        def undo(result: str) -> None:
            results.append(result)
            undone.set()
        error = self.assertRaises(StillRunning, within, 0.01, "connect volume 1", call)
        self.assertIn("not done within 0.01 s", str(error))
        error.call.add_done_callback(lambda late: undo(late.result()))
        self.assertEqual([], results)
        gone.set()
        self.assertTrue(undone.wait(TIMEOUT))
        self.assertEqual(["late"], results)

    def test_a_late_failure_of_a_tenants_process_fills_no_log(self) -> None:
        gone, log = threading.Event(), self.useFixture(fixtures.FakeLogger())

        def call() -> None:
            gone.wait(TIMEOUT)
            raise OSError("no route")
        error = self.assertRaises(StillRunning, within, 0.01, "connect", call)
        gone.set()
        self.assertIsInstance(error.call.exception(TIMEOUT), OSError)
        self.assertEqual("", log.output)
