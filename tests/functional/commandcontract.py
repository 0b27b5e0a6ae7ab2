# SPDX-License-Identifier: Apache-2.0
"""Test commands in containers (onevm exec), which must behave alike under every driver, from start to report.

A test case mixes this in beside its driver's own.

Import the module, not its class: it would else be a test of the importing module.
"""

import base64
from typing import ClassVar

from containerhost.engines.contract import Status
from onedriver.monitor import Type
from tests.functional_one.commands import Commands
from tests.functional_one.front_end import FrontEnd
from tests.functional_one.vms import Machine
from tests.waiting import await_that

SUSPEND, POWEROFF, CLEANUP, RESUME = 6, 18, 23, 20


class CommandContract(Commands):
    """:cvar long: a command that sleeps for long, or several, of a thousand seconds and some each
    :cvar sleepers: those seconds
    :cvar paused: what is said of a VM that is suspended
    """

    long: ClassVar[str] = "sleep 1001"
    sleepers: ClassVar[frozenset[str]] = frozenset({"1001"})
    paused: ClassVar[str]

    def somebodys(self) -> Machine:
        """A VM whose program is not the container's root's, where the driver can have that."""
        return self.deployed()

    def assert_ended(self, machine: Machine) -> None:
        """Check that all that was started has ended by the time the action ends."""
        self.assertEqual(set(), self.sleeping(machine))

    def sleeping(self, machine: Machine) -> set[str]:
        """The arguments of all that sleep for long in the container, but for its own program."""
        shown = self.inside(machine, "sh", "-c", "ps -o args").splitlines()
        return {line.split()[1] for line in shown if line.startswith("sleep 100")} - {"1000"}

    def sleeps(self, machine: Machine) -> None:
        self.begun(machine, self.long)
        await_that(lambda: self.sleeping(machine) == self.sleepers, "the commands run")

    def test_from_begin_to_message(self) -> None:
        machine = self.somebodys()
        front_end = self.useFixture(FrontEnd())
        self.addCleanup(self.node.stop_monitoring)
        self.assertEqual(0, self.node.start_monitoring(front_end.configuration()).status)
        self.begun(machine, "sh -c 'cat; id -u; echo \"$0 oops\" >&2; exit 3' it\\'s", b"in\0put\n")
        await_that(lambda: front_end.texts(Type.EXEC_VM), "the command's end was told")
        stdout, stderr = (base64.b64encode(part).decode() for part in (b"in\0put\n0\n", b"it's oops\n"))
        self.assertEqual([f'VM=[ ID="1", STATUS="DONE", RETURN_CODE="3", STDOUT="{stdout}", STDERR="{stderr}" ]'],
                         front_end.texts(Type.EXEC_VM))
        self.assertEqual(["tcp"], [way for way, message in front_end.messages if message.type == Type.EXEC_VM])

    def test_one_at_a_time_and_a_cancelled_one_is_gone(self) -> None:
        machine = self.deployed()
        for _ in range(2):
            self.sleeps(machine)
            second = self.exec(machine, "echo hi")
            self.assertNotEqual(0, second.status)
            self.assertIn("runs a command already", second.reason)
            for _ in range(2):
                self.cancelled(machine)
            self.assert_ended(machine)
            self.assertEqual("", self.node.probe("vm/execution").out)
        self.assertEqual(Status.RUNNING, self.status(machine))

    def test_commands_that_end_badly_are_told(self) -> None:
        machine = self.deployed()
        for command, status in (("no-such-program", 127), ("/etc", 126), ("sh -c 'kill -9 $$'", 137)):
            self.begun(machine, command)
            self.assertIn(f'STATUS="DONE", RETURN_CODE="{status}"', self.outcome())
        self.node.configure("exec_timeout = 2\n")
        self.begun(machine, self.long)
        outcome = self.outcome()
        self.assertIn('STATUS="ERROR"', outcome)
        self.assertIn(b"it is killed", self.stderr(outcome))
        self.assert_ended(machine)

    def test_what_cannot_begin_is_refused(self) -> None:
        machine = self.deployed()
        for command, words in (("echo 'x", "cannot be split"), ("", "is empty")):
            result = self.exec(machine, command)
            self.assertEqual((2, True), (result.status, result.reason.endswith(".")))
            self.assertIn(words, result.reason)
        self.ok("save", machine, lcm=SUSPEND)
        self.assertIn(self.paused, self.exec(machine, "echo hi").reason)
        self.ok("cancel", machine, lcm=POWEROFF)
        self.assertIn("not running", self.exec(machine, "echo hi").reason)
        self.assertIn("no container one-2", self.exec(Machine(2), "echo hi").reason)
        self.assertFalse(self.has_command(machine))

    def test_the_end_of_a_vm_is_that_of_its_command(self) -> None:
        machine = self.deployed()
        self.sleeps(machine)
        self.ok("cancel", machine, lcm=POWEROFF)
        self.assertEqual(("", False), (self.node.probe("vm/execution").out, self.has_command(machine)))
        self.assertEqual(Status.STOPPED, self.status(machine))
        self.ok("deploy", machine, lcm=RESUME)
        self.begun(machine, "sh -c 'sleep 1001 & wait'")
        self.ok("cancel", machine, lcm=CLEANUP)
        self.assertEqual(("", False), (self.node.probe("vm/execution").out, self.has_command(machine)))
