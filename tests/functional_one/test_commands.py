# SPDX-License-Identifier: Apache-2.0
"""Commands in containers on LXD (onevm exec)."""

from tests import levels
from tests.functional import commandcontract
from tests.functional_one.test_actions import ActionsCase
from tests.functional_one.vms import Machine
from tests.waiting import await_that


@levels.exhaustive("the contract of commands has it in functional_onedock", tests=(
    "test_the_end_of_a_vm_is_that_of_its_command", "test_commands_that_end_badly_are_told",
    "test_one_at_a_time_and_a_cancelled_one_is_gone", "test_what_cannot_begin_is_refused"))
class CommandsTest(commandcontract.CommandContract, ActionsCase):
    paused = "rozen"

    def assert_ended(self, machine: Machine) -> None:
        """LXD tells that it has killed a command before it is dead."""
        await_that(lambda: not self.sleeping(machine), "the command is dead")
