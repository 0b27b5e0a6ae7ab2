# SPDX-License-Identifier: Apache-2.0
"""Commands in containers on Docker (onevm exec)."""

import base64

from tests import levels
from tests.functional import commandcontract
from tests.functional_one.vms import Machine
from tests.functional_onedock.base import OnedockCase, own

REPEATED = "the drivers share this code, and the gate has it on LXD"

# A shell, a program below it, one that hides from its session and its parent, and one that hides its environment too.
TREE = "sh -c 'sleep 1001 & setsid sleep 1002 & env -i setsid sleep 1003 & (sleep 1004 &) ; wait'"


@levels.exhaustive(REPEATED, tests=(
    "test_commands_that_end_badly_are_told",
    "test_an_engine_that_goes_away_meanwhile"))
class CommandsTest(commandcontract.CommandContract, OnedockCase):
    inline = False
    long = TREE
    sleepers = frozenset({"1001", "1002", "1003", "1004"})
    paused = "is paused"

    def somebodys(self) -> Machine:
        return self.deployed(Machine(more=own(DOCKER_USER="1000:1000")))

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

    def test_an_engine_that_goes_away_meanwhile(self) -> None:
        machine = self.deployed()
        self.sleeps(machine)
        self.node.docker.daemon.stop()
        try:
            outcome = self.outcome()
        finally:
            self.node.docker.daemon.start()
        self.assertIn('STATUS="ERROR"', outcome)
        self.assert_ended(machine)
