# SPDX-License-Identifier: Apache-2.0
"""Kill each action of oned's once at each of its steps, let oned be told either outcome, and resume the VM.

In between a disk is reverted, the host restarts, or monitoring comes. What always holds for the machines holds after
each of these.
"""

import itertools
import logging
from collections.abc import Callable, Iterator
from typing import ClassVar

import testtools

from tests import levels
from tests.model.opennebula.machine import FAILURE, GPUS, ROOT, SUCCESS, VOLATILE, OpenNebula, Server
from tests.model.opennebula.test_lxdone import Lxdone
from tests.model.opennebula.test_onedock import Onedock
from tests.model.opennebula.transitions import ACTIONS

# How a VM that runs comes into a state.
LEADS = {"poweroff": "poweroff", "suspended": "suspend", "stopped": "stop", "undeployed": "undeploy"}
RESUMES = {"boot failure": "retry", "unknown": "resume unknown", "poweroff": "resume", "suspended": "resume suspended",
           "stopped": "resume stopped", "undeployed": "resume undeployed"}


def reverted(number: int) -> Callable[[OpenNebula, Server], None]:
    def revert(machine: OpenNebula, server: Server) -> None:
        if server.state in ("poweroff", "suspended"):
            machine.revert_disk(server, number, 0)
    return revert


BETWEEN: dict[str, Callable[[OpenNebula, Server], None]] = {
    "nothing": lambda machine, server: None,
    "its root is reverted": reverted(ROOT),
    "its disk is reverted": reverted(VOLATILE),
    "the host restarts": lambda machine, server: machine.reboot_host(),
    "monitoring comes": lambda machine, server: machine.monitor(plan=()),
}


class Sweep:
    """Run the points of a driver's machine; a module imports the subclasses alone."""

    machine: ClassVar[type[OpenNebula]]

    def test_every_action_at_every_step(self) -> None:
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)  # type: ignore[attr-defined]
        failures = []
        for asked, between, told, step in self.points():
            try:
                self.interrupt(asked, between, told, step)
            except Exception as error:  # of each point, to see which fail alike
                failures.append(f"{asked}, killed at step {step}, told {told}, then {between}: "
                                f"{type(error).__name__}: {error}")
        self.assertEqual([], failures)  # type: ignore[attr-defined]

    def points(self) -> Iterator[tuple[str, str, str, int]]:
        """Yield the points of this run: at the gate one of each action, and its share of the others."""
        for asked in ACTIONS:
            steps = self.interrupt(asked, "nothing", FAILURE, None)
            possible = [(asked, *point) for point in itertools.product(BETWEEN, (SUCCESS, FAILURE), range(steps))]
            yield from levels.some(f"sweep {self.machine.__name__} {asked}", possible, {0})

    def interrupt(self, asked: str, between: str, told: str, step: int | None) -> int:
        """Kill an action at one of its steps, or at none.

        :param told: what oned is told of it
        :returns: how many steps it came to; none where the driver refuses what leads to the action
        """
        machine, transition = self.machine(), ACTIONS[asked]
        try:
            server = machine.described(persistent=False, devices=sorted(GPUS)[:1])
            if transition.before != server.state:
                machine.ask(server, ACTIONS["retry"])
                machine.write_to(server)
            if transition.before in LEADS:
                machine.ask(server, ACTIONS[LEADS[transition.before]])
            elif transition.before == "unknown":
                machine.reboot_host()
            if server.state != transition.before:
                return 0
            machine.ask(server, transition, [] if step is None else [(step, "killed")], told)
            steps = machine.steps
            if server.vm.id in machine.servers:
                BETWEEN[between](machine, server)
                machine.holds()
                if server.state in RESUMES:
                    machine.ask(server, ACTIONS[RESUMES[server.state]])
            machine.holds()
        finally:
            machine.teardown()
        return steps


class LxdoneSweepTest(Sweep, testtools.TestCase):
    machine = Lxdone


class OnedockSweepTest(Sweep, testtools.TestCase):
    machine = Onedock
