# SPDX-License-Identifier: Apache-2.0
"""Kill each action of oned once at each of its steps, report either outcome to oned, and resume the VM.

In between a disk is reverted, the host restarts, or monitoring comes. What always holds for the machines holds after
each of these.
"""

import itertools
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import fixtures
import testtools
from testtools.content import text_content

from containerhost.devices.model import Role
from tests import levels
from tests.model.disk import FULL, POWER_CUT
from tests.model.hardware import drawn, pristine, unbound
from tests.model.inmemory import STALLS
from tests.model.opennebula.machine import OpenNebula
from tests.model.opennebula.test_lxdone import Lxdone
from tests.model.opennebula.test_onedock import Onedock
from tests.model.opennebula.transitions import ACTIONS
from tests.model.opennebula.world import DEVICES, FAILURE, GPUS, ROOT, SUCCESS, VOLATILE, Server

# How a VM that runs comes into a state.
LEADS = {"poweroff": "poweroff", "suspended": "suspend", "stopped": "stop", "undeployed": "undeploy"}
RESUMES = {"boot failure": "retry", "unknown": "resume unknown", "poweroff": "resume", "suspended": "resume suspended",
           "stopped": "resume stopped", "undeployed": "resume undeployed"}
ENGINE = ("engine", "list")  # steps that are requests to the engine
MONITORING = "monitoring"
FUNCTION = next(name for name, device in DEVICES.items() if device.role is Role.VF)
REVERTED = ("poweroff", "suspended")  # states in which the transfer driver reverts a disk


def reverted(number: int) -> Callable[[OpenNebula, Server], None]:
    def revert(machine: OpenNebula, server: Server) -> None:
        machine.revert_disk(server, number, 0)
    return revert


Step = Callable[[OpenNebula, Server], None]
REVERTS: dict[str, Step] = {"its root is reverted": reverted(ROOT), "its disk is reverted": reverted(VOLATILE)}
OTHERS: dict[str, Step] = {
    "the host restarts": lambda machine, server: machine.reboot_host(),
    "monitoring comes": lambda machine, server: machine.monitor(plan=()),
}
BETWEEN: dict[str, Step] = {"nothing": lambda machine, server: None, **REVERTS, **OTHERS}


class Sweep:
    """Run the points of a driver's machine; a module imports the subclasses alone."""

    machine: ClassVar[type[OpenNebula]]
    reverts: ClassVar[bool]  # whether disks of VMs that are off can be reverted

    def test_every_action_at_every_step(self) -> None:
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)  # type: ignore[attr-defined]  # of TestCase
        failures = []
        for asked, between, told, step in self.points():
            try:
                self.interrupt(asked, between, told, step)
            except Exception as error:  # of each point, to see which fail alike
                failures.append(f"{asked}, killed at step {step}, told {told}, then {between}: "
                                f"{type(error).__name__}: {error}")
        self.assertEqual([], failures)  # type: ignore[attr-defined]  # of TestCase

    def points(self) -> Iterator[tuple[str, str, str, int]]:
        """Yield the points of this run: at the gate a share of those with :data:`OTHERS` in between."""
        for asked, transition in ACTIONS.items():
            steps = self.interrupt(asked, "nothing", FAILURE).steps
            possible = [(asked, between, told, step) for between, told, step in itertools.product(
                BETWEEN, (SUCCESS, FAILURE), range(len(steps))) if between not in REVERTS or (
                    self.reverts and (transition.done if told == SUCCESS else transition.failed) in REVERTED)]
            always = {place for place, point in enumerate(possible) if point[1] not in OTHERS}
            yield from levels.some(f"sweep {self.machine.__name__} {asked}", possible, always)

    def test_every_action_at_every_change_of_the_disk(self) -> None:
        """Let the disk be full from each of its changes on, the engine stall, and cut the power at each step."""
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)  # type: ignore[attr-defined]  # of TestCase
        self.useFixture(fixtures.MockPatchObject(os, "fsync"))  # type: ignore[attr-defined]  # what is synced is modelled
        failures, counts = [], Counter[str]()
        for asked, kind, told, step in self.points_of_disk():
            choices, choice = 1, 0
            while choice < choices:
                counts[kind] += 1
                try:
                    machine = self.interrupt(asked, "nothing", told, step, kind, choice)
                    choices = machine.node.choices
                except Exception as error:  # of each point, to see which fail alike
                    failures.append(f"{asked}, {kind} at step {step}, state {choice}, told {told}: "
                                    f"{type(error).__name__}: {error}")
                choice += 1
        self.addDetail("points", text_content(str(dict(counts))))  # type: ignore[attr-defined]
        self.assertEqual([], failures)  # type: ignore[attr-defined]  # of TestCase

    def points_of_disk(self) -> Iterator[tuple[str, str, str, int]]:
        for asked in ACTIONS:
            steps = self.interrupt(asked, "nothing", FAILURE, watched=True).steps
            possible = [(asked, FULL, FAILURE, step) for step, what in enumerate(steps) if what == "disk"]
            possible += [(asked, STALLS, FAILURE, step) for step, what in enumerate(steps) if what in ENGINE]
            possible += [(asked, POWER_CUT, told, step) for told in (SUCCESS, FAILURE) for step in range(len(steps))]
            yield from levels.some(f"disk {self.machine.__name__} {asked}", possible, ())

    def test_every_action_at_every_read_and_action_of_root(self) -> None:
        """Let reads of the host's files fail, be empty or stale, and what root does fail, be late or never end."""
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)  # type: ignore[attr-defined]  # of TestCase
        failures, counts = [], Counter[str]()

        def steps(asked: str) -> Sequence[str]:
            return self.interrupt(asked, "nothing", FAILURE, scanned=True).steps

        for asked, kind, step, what in drawn((*ACTIONS, MONITORING), steps):
            counts[f"{what}: {kind}"] += 1
            try:
                self.interrupt(asked, "nothing", FAILURE, step, kind, scanned=True)
            except Exception as error:  # of each point, to see which fail alike
                failures.append(f"{asked}, {what} at step {step} {kind}: {type(error).__name__}: {error}")
                pristine.cache_clear()  # it may have been left as it was
        self.addDetail("points", text_content(str(dict(counts))))  # type: ignore[attr-defined]
        self.assertEqual([], failures)  # type: ignore[attr-defined]  # of TestCase

    def interrupt(self, asked: str, between: str, told: str, step: int | None = None, kind: str = "killed",
                  choice: int = 0, watched: bool = False, scanned: bool = False) -> OpenNebula:
        """Let an action, or :data:`MONITORING`, meet a fault at one of its steps, or none.

        :param told: what oned is told of it if it is killed
        :param choice: which of the states that a power cut may leave it leaves
        :param watched: whether changes of the disk are steps
        :param scanned: whether the VM has a network function, too, and reads of the host's files and actions of root
            are steps
        :returns: the machine; its last action has no steps where the driver refuses what leads to the action
        """
        machine, transition = self.machine(), ACTIONS["updateconf" if asked == MONITORING else asked]
        plan = [] if step is None else [(step, kind)]
        if scanned:
            machine.node.devices = machine.devices = DEVICES
        try:
            server = machine.described(persistent=False, devices=[*sorted(GPUS)[:1], *([FUNCTION] if scanned else ())])
            if transition.before != server.state:
                machine.ask(server, ACTIONS["retry"])
                machine.write_to(server)
            if transition.before in LEADS:
                machine.ask(server, ACTIONS[LEADS[transition.before]])
            elif transition.before == "unknown":
                machine.reboot_host()
            machine.steps = []
            if server.state != transition.before:
                return machine
            machine.node.watched, machine.node.choice = watched or kind in (FULL, STALLS, POWER_CUT), choice
            machine.node.scanned = scanned
            if asked == MONITORING:
                machine.monitor(plan=plan)
                machine.steps = machine.node.process.passed
            else:
                machine.ask(server, transition, plan, told)
            steps = machine.steps
            if server.vm.id in machine.servers:
                BETWEEN[between](machine, server)
                machine.holds()
                if server.state in RESUMES:
                    machine.ask(server, ACTIONS[RESUMES[server.state]])
            machine.holds()
        finally:
            machine.teardown()
        assert not unbound(), f"{unbound()} have no driver any more"
        machine.steps = steps
        return machine


class LxdoneSweepTest(Sweep, testtools.TestCase):
    machine = Lxdone
    reverts = True


class OnedockSweepTest(Sweep, testtools.TestCase):
    machine = Onedock
    reverts = False
