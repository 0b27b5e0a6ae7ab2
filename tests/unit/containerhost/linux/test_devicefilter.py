# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import fixtures
import testtools

from containerhost.errors import HostActionFailed
from containerhost.linux import devicefilter

RULES = bytes(range(16))  # of an engine


class InstructionsTest(testtools.TestCase):
    """Test the instructions as written; the functional tests try what the kernel makes of them."""

    def test_verdicts_are_read_from_what_was_written(self):
        wanted = {(195, 0): True, (195, 255): False, (511, 3): True}
        program = devicefilter.written(wanted) + RULES
        self.assertEqual((wanted, RULES), devicefilter.parted(program))
        self.assertEqual(({}, RULES), devicefilter.parted(RULES))
        self.assertEqual(b"", devicefilter.written({}))

    def test_each_is_as_long_as_it_says_and_leads_past_itself(self):
        size = devicefilter.INSTRUCTION.size
        program = devicefilter.verdict((195, 0), True)
        self.assertEqual(devicefilter.STEPS * size, len(program))
        for place in range(devicefilter.STEPS):
            operation, _, offset, _ = devicefilter.INSTRUCTION.unpack_from(program, place * size)
            if operation == devicefilter.UNLESS:
                self.assertEqual(devicefilter.STEPS, place + 1 + offset)


class GroupTest(testtools.TestCase):
    def test_a_directory_that_is_no_control_group(self):
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.assertRaises(HostActionFailed, devicefilter.decide, str(directory), (195, 0), True)
        self.assertRaises(HostActionFailed, devicefilter.decided, "/nonexistent")

    def test_another_machine(self):
        self.useFixture(fixtures.MockPatchObject(os, "uname", lambda: os.uname_result(("", "", "", "", "z80"))))
        error = self.assertRaises(HostActionFailed, devicefilter.decide, "/tmp", (195, 0), True)
        self.assertIn("z80", str(error))
