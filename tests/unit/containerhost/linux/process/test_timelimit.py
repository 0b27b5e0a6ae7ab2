# SPDX-License-Identifier: Apache-2.0
import threading

import testtools

from containerhost.linux.process.timelimit import within

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
        error = self.assertRaises(TimeoutError, within, 0.01, "connect volume 1", call, undo)
        self.assertIn("not done within 0.01 s", str(error))
        self.assertEqual([], results)
        gone.set()
        self.assertTrue(undone.wait(TIMEOUT))
        self.assertEqual(["late"], results)

    def test_a_late_failure_undoes_nothing(self) -> None:
        gone, ended = threading.Event(), threading.Event()

        def call() -> None:
            gone.wait(TIMEOUT)
            ended.set()
            raise OSError("no route")
        self.assertRaises(TimeoutError, within, 0.01, "connect", call, self.fail)
        gone.set()
        self.assertTrue(ended.wait(TIMEOUT))
