"""Commands in containers (onevm exec), from their begin to the message that tells their end."""

import base64

from containerhost.engines import Status
from onedriver.monitor import Type
from tests.functional_one.commands import Commands
from tests.functional_one.front_end import FrontEnd
from tests.functional_one.test_actions import CLEANUP, POWEROFF, SUSPEND, ActionsCase
from tests.functional_one.vms import Machine
from tests.waiting import await_that


class CommandsTest(Commands, ActionsCase):
    def test_from_begin_to_message(self) -> None:
        machine = self.deployed()
        front_end = self.useFixture(FrontEnd())
        self.addCleanup(self.node.stop_monitoring)
        self.assertEqual(0, self.node.start_monitoring(front_end.configuration()).status)
        self.begun(machine, "sh -c 'cat; echo \"$0 oops\" >&2; exit 3' it\\'s", b"in\0put\n")
        await_that(lambda: front_end.texts(Type.EXEC_VM), "the command's end was told")
        stdout, stderr = (base64.b64encode(part).decode() for part in (b"in\0put\n", b"it's oops\n"))
        self.assertEqual([f'VM=[ ID="1", STATUS="DONE", RETURN_CODE="3", STDOUT="{stdout}", STDERR="{stderr}" ]'],
                         front_end.texts(Type.EXEC_VM))
        self.assertEqual(["tcp"], [way for way, message in front_end.messages if message.type == Type.EXEC_VM])

    def test_one_at_a_time_and_a_cancelled_one_is_gone(self) -> None:
        machine = self.deployed()
        for _ in range(2):
            self.begun(machine, "sleep 1000")
            await_that(lambda: self.running(machine, "sleep"), "the command runs")
            second = self.exec(machine, "echo hi")
            self.assertNotEqual(0, second.status)
            self.assertIn("runs a command already", second.reason)
            for _ in range(2):
                self.cancelled(machine)
            await_that(lambda: not self.running(machine, "sleep"), "the command is killed")
            self.assertEqual("", self.node.probe("vm/execution").out)

    def test_commands_that_end_badly_are_told(self) -> None:
        machine = self.deployed()
        self.begun(machine, "no-such-program")
        self.assertIn('STATUS="DONE", RETURN_CODE="127"', self.outcome())
        self.node.configure("exec_timeout = 1\n")
        self.begun(machine, "sleep 1000")
        outcome = self.outcome()
        self.assertIn('STATUS="ERROR"', outcome)
        self.assertIn(b"it is killed", self.stderr(outcome))
        await_that(lambda: not self.running(machine, "sleep"), "the command is killed")

    def test_what_cannot_begin_is_refused(self) -> None:
        machine = self.deployed()
        for command, stdin, words in (("echo 'x", b"", "cannot be split"), ("", b"", "is empty")):
            result = self.exec(machine, command, stdin)
            self.assertEqual((2, True), (result.status, result.reason.endswith(".")))
            self.assertIn(words, result.reason)
        self.ok("save", machine, lcm=SUSPEND)
        self.assertNotEqual(0, self.exec(machine, "echo hi").status)
        self.ok("cancel", machine, lcm=POWEROFF)
        self.assertIn("not running", self.exec(machine, "echo hi").reason)
        self.assertIn("no container one-2", self.exec(Machine(2), "echo hi").reason)
        self.assertFalse(self.has_command(machine))

    def test_the_end_of_a_vm_is_that_of_its_command(self) -> None:
        machine = self.deployed()
        self.begun(machine, "sleep 1000")
        self.ok("cancel", machine, lcm=POWEROFF)
        self.assertEqual(("", False), (self.node.probe("vm/execution").out, self.has_command(machine)))
        self.assertEqual(Status.STOPPED, self.status(machine))
        self.ok("deploy", machine, lcm=20)
        self.begun(machine, "sh -c 'sleep 1000 & wait'")
        self.ok("cancel", machine, lcm=CLEANUP)
        self.assertEqual(("", False), (self.node.probe("vm/execution").out, self.has_command(machine)))
