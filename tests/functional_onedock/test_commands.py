"""Commands in containers on Docker (onevm exec), from their begin to the message that tells their end."""

import base64

from containerhost.engines import Status
from onedriver.monitor import Type
from tests.functional_one.commands import Commands
from tests.functional_one.front_end import FrontEnd
from tests.functional_one.vms import Machine
from tests.functional_onedock.base import CLEANUP, POWEROFF, RESUME, SUSPEND, OnedockCase, own
from tests.waiting import await_that

# A shell, a program below it, one that hides from its session and its parent, and one that hides its environment too.
TREE = "sh -c 'sleep 1001 & setsid sleep 1002 & env -i setsid sleep 1003 & (sleep 1004 &) ; wait'"


class CommandsTest(Commands, OnedockCase):
    inline = False

    def sleeping(self, machine: Machine) -> set[str]:
        """The arguments of all that sleep for long in the container, but for its own program."""
        shown = self.shell(machine, "ps -o args").splitlines()
        return {line.split()[1] for line in shown if line.startswith("sleep 100")} - {"1000"}

    def test_from_begin_to_message(self) -> None:
        machine = self.deployed(Machine(more=own(DOCKER_USER="1000:1000")))
        front_end = self.useFixture(FrontEnd())
        self.addCleanup(self.node.monitoring, "stop onedock 3 node1")
        self.assertEqual(0, self.node.monitoring("onedock 3 node1", front_end.configuration()).status)
        self.begun(machine, "sh -c 'cat; id -u; echo \"$0 oops\" >&2; exit 3' it\\'s", b"in\0put\n")
        await_that(lambda: front_end.texts(Type.EXEC_VM), "the command's end was told")
        stdout, stderr = (base64.b64encode(part).decode() for part in (b"in\0put\n0\n", b"it's oops\n"))
        self.assertEqual([f'VM=[ ID="1", STATUS="DONE", RETURN_CODE="3", STDOUT="{stdout}", STDERR="{stderr}" ]'],
                         front_end.texts(Type.EXEC_VM))

    def test_one_at_a_time_and_a_cancelled_one_is_gone_with_all_it_began(self) -> None:
        machine = self.deployed()
        for _ in range(2):
            self.begun(machine, TREE)
            await_that(lambda: self.sleeping(machine) == {"1001", "1002", "1003", "1004"}, "the commands run")
            self.assertIn("runs a command already", self.exec(machine, "echo hi").reason)
            for _ in range(2):
                self.cancelled(machine)
            self.assertEqual(set(), self.sleeping(machine))
            self.assertEqual("", self.node.probe("vm/execution").out)
        self.assertEqual(Status.RUNNING, self.status(machine))

    def test_commands_that_end_badly_are_told(self) -> None:
        machine = self.deployed()
        for command, status in (("no-such-program", 127), ("/etc", 126), ("sh -c 'kill -9 $$'", 137)):
            self.begun(machine, command)
            self.assertIn(f'STATUS="DONE", RETURN_CODE="{status}"', self.outcome())
        self.node.configure("exec_timeout = 2\n")
        self.begun(machine, TREE)
        outcome = self.outcome()
        self.assertIn('STATUS="ERROR"', outcome)
        self.assertIn(b"it is killed", self.stderr(outcome))
        self.assertEqual(set(), self.sleeping(machine))

    def test_what_it_leaves_running_and_prints_too_much(self) -> None:
        machine = self.deployed()
        self.begun(machine, "sh -c 'echo begun; sleep 1001 &'")
        self.assertIn(f'STATUS="DONE", RETURN_CODE="0", STDOUT="{base64.b64encode(b"begun" + bytes([10])).decode()}"',
                      self.outcome())
        self.assertEqual({"1001"}, self.sleeping(machine))
        self.begun(machine, "sh -c 'cat /dev/zero | head -c 3000000; cat > /dev/null; echo oops >&2'", bytes(70_000))
        outcome = self.outcome()
        self.assertEqual(64 * 1024, len(base64.b64decode(outcome.partition('STDOUT="')[2].partition('"')[0])))
        self.assertEqual(b"oops\n", self.stderr(outcome))

    def test_what_cannot_begin_is_refused(self) -> None:
        machine = self.deployed()
        for command, words in (("echo 'x", "cannot be split"), ("", "is empty")):
            result = self.exec(machine, command)
            self.assertEqual((2, True), (result.status, result.reason.endswith(".")))
            self.assertIn(words, result.reason)
        self.ok("save", machine, lcm=SUSPEND)
        self.assertIn("is paused", self.exec(machine, "echo hi").reason)
        self.ok("cancel", machine, lcm=POWEROFF)
        self.assertIn("not running", self.exec(machine, "echo hi").reason)
        self.assertIn("no container one-2", self.exec(Machine(2), "echo hi").reason)
        self.assertFalse(self.has_command(machine))

    def test_the_end_of_a_vm_is_that_of_its_command(self) -> None:
        machine = self.deployed()
        self.begun(machine, "sleep 1001")
        self.ok("cancel", machine, lcm=POWEROFF)
        self.assertEqual(("", False), (self.node.probe("vm/execution").out, self.has_command(machine)))
        self.ok("deploy", machine, lcm=RESUME)
        self.begun(machine, "sleep 1001")
        self.ok("cancel", machine, lcm=CLEANUP)
        self.assertEqual(("", False), (self.node.probe("vm/execution").out, self.has_command(machine)))

    def test_an_engine_that_goes_away_meanwhile(self) -> None:
        machine = self.deployed()
        self.begun(machine, TREE)
        await_that(lambda: len(self.sleeping(machine)) == 4, "the commands run")
        self.node.docker.daemon.stop()
        outcome = self.outcome()
        self.node.docker.daemon.start()
        self.assertIn('STATUS="ERROR"', outcome)
        self.assertEqual(set(), self.sleeping(machine))
