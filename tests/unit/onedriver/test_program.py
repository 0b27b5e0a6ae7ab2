# SPDX-License-Identifier: Apache-2.0
import errno
import io
import logging
import os
import sys
from unittest import mock

import fixtures
import testtools

from onedriver import program
from onedriver.errors import BadInput, NotSupported


class Told(Exception):
    """An error the caller knows."""


class StartTest(testtools.TestCase):
    def test_root_leaves_the_directory_of_its_caller(self) -> None:
        """sudo starts the command in the caller's directory, where programs would read the caller's configuration."""
        caller = self.useFixture(fixtures.TempDir()).path
        self.addCleanup(os.chdir, os.getcwd())
        seen = []
        for user in (0, 1000):
            os.chdir(caller)
            with mock.patch("os.geteuid", return_value=user), mock.patch.object(sys, "argv", ["lxdone", "probe", "x"]):
                self.assertEqual(7, program.start(lambda words: seen.append((os.getcwd(), words)) or 7))
        self.assertEqual([("/", ["probe", "x"]), (caller, ["probe", "x"])], seen)


class ProgramTest(testtools.TestCase):
    def ran(self, body, **known):
        out, err = io.StringIO(), io.StringIO()
        status = program.run("deploy of VM 7", body, {Told: 5}, out, err)
        return status, out.getvalue(), err.getvalue()

    def test_success_prints_the_result_alone(self) -> None:
        self.assertEqual((0, "one-7\n", ""), self.ran(lambda: "one-7"))
        self.assertEqual((0, "", ""), self.ran(lambda: None))

    def test_a_failure_is_one_line_that_ends_in_a_period(self) -> None:
        def fail(error):
            def body():
                raise error
            return body

        for error, status, text in ((BadInput("a\n  b"), 2, "a b."), (NotSupported("no."), 3, "no."),
                                    (Told("x"), 5, "x.")):
            self.assertEqual((status, "", f"deploy of VM 7: {text}\n"), self.ran(fail(error)))

    def test_a_mistake_of_the_driver_says_so_and_keeps_its_trace_in_the_log(self) -> None:
        status, _, err = self.ran(lambda: 1 / 0)
        *trace, last = err.splitlines()
        self.assertEqual(1, status)
        self.assertTrue(all(line.startswith("DEBUG: ") for line in trace))
        self.assertIn("ZeroDivisionError", last)
        self.assertTrue(last.startswith("deploy of VM 7: a mistake in the driver") and last.endswith("."))

    def test_what_the_host_lacks_is_no_mistake_of_the_driver(self) -> None:
        def body() -> None:
            raise OSError(errno.ENOSPC, "No space left on device", "/var/lib/one/disk.0")

        status, _, err = self.ran(body)
        last = err.splitlines()[-1]
        self.assertEqual(1, status)
        self.assertIn("No space left on device: '/var/lib/one/disk.0'", last)
        self.assertNotIn("mistake", last)

    def test_a_reason_has_a_length_a_person_reads(self) -> None:
        self.assertEqual(program.KNOWN_LENGTH, len(program.sentence("x" * 5000)))

    def test_log_records_are_lines_that_oned_logs(self) -> None:
        stream = io.StringIO()
        root = logging.getLogger()
        before = root.handlers[:], root.level
        self.addCleanup(lambda: (root.handlers.__setitem__(slice(None), before[0]), root.setLevel(before[1])))
        program.log_to(stream)
        log = logging.getLogger("any.module")
        log.debug("unseen")
        log.info("one\ntwo")
        log.warning("careful")
        try:
            raise ValueError("why")
        except ValueError:
            log.exception("it failed")
        self.assertEqual(["INFO: one two", "WARN: careful", "ERROR: it failed (ValueError('why'))"],
                         stream.getvalue().splitlines())
