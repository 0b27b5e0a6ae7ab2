# SPDX-License-Identifier: Apache-2.0
"""Interrupt each request of nova once at each of its steps, by each kind of fault, and follow the messages' advice.

After the fault nova-compute restarts, the server's user does what the error advises, nova-compute restarts again, and
the server is deleted. What always holds for the machine holds after each of these. Of the pairs of faults (a kill, and
one at the start that follows; one of the engine, and a kill while it is handled) each run tries others.
"""

import contextlib
import functools
import itertools
import logging
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from unittest import mock

import fixtures
import testtools
from testtools.content import text_content

from tests import levels
from tests.model import frame, hardware
from tests.model.disk import FULL, POWER_CUT
from tests.model.inmemory import STALLS
from tests.model.nova import api
from tests.model.nova.test_nova import Nova

LARGE = api.FLAVORS["1 GPU, 1 GiB"]
KINDS = ("killed", "unavailable", "times out", "other host restarts")
ENGINE = ("engine", "list")  # steps that are requests to the engine
OF_ENGINE = ("unavailable", "times out")  # faults of a request to the engine alone
PAIRS = 30  # of faults of each kind, where no time is set
FIRST_STEPS = 25  # of the start of nova-compute after a kill, and of the handling of a fault
Request = Callable[[Nova, str], None]


def sent(name: str) -> Request:
    def send(machine: Nova, uuid: str) -> None:
        assert api.takes(machine.cloud, name, machine.cloud.instances[uuid]), f"{name} is not possible"
        machine.note(name, uuid)
        api.send(machine.cloud, name, uuid)
    return send


def resized(machine: Nova, uuid: str, host: str, locked: bool = False) -> None:
    api.resize(machine.cloud, uuid, host, LARGE)
    if locked:
        machine.cloud.begin_action(uuid, "lock")


def evacuated(machine: Nova, uuid: str, first: str) -> None:
    """Evacuate a server from its host, which is off, and whose disks the other host does not see.

    :param first: which host starts first afterwards
    """
    machine.hosts = {first: machine.hosts[first], **machine.hosts}
    machine.fail_host(machine.hosts["one"])
    machine.evacuate_to("two", uuid)


def evacuated_while_host_returns(machine: Nova, uuid: str) -> None:
    """Evacuate a server from a host that is up again before the evacuation has ended: nova calls it done for ever."""
    evacuated(machine, uuid, "two")
    machine.start(machine.hosts["one"])


def migrated_live(machine: Nova, uuid: str) -> None:
    api.migrate_live(machine.cloud, uuid, "two")


def unshelved(machine: Nova, uuid: str, locked: bool = False) -> None:
    api.unshelve(machine.cloud, uuid, "two")
    if locked:
        machine.cloud.begin_action(uuid, "lock")


def booted(machine: Nova, uuid: str, host: str = "one", size: str = "1 GPU, 512 MiB") -> None:
    api.boot(machine.cloud, host, api.FLAVORS[size])


AWAY, HERE = functools.partial(resized, host="two"), functools.partial(resized, host="one")
# By name: what brings the server into the state for the request, and the request.
SWEPT: dict[str, tuple[tuple[Request, ...], Request]] = {
    "boot": ((), booted),
    "boot, two GPUs": ((), functools.partial(booted, host="two", size="2 GPUs, 1 GiB")),
    "stop": ((), sent("stop")),
    "start": ((sent("stop"),), sent("start")),
    "soft reboot": ((), sent("soft reboot")),
    "hard reboot": ((), sent("hard reboot")),
    "pause": ((), sent("pause")),
    "unpause": ((sent("pause"),), sent("unpause")),
    "suspend": ((), sent("suspend")),
    "resume": ((sent("suspend"),), sent("resume")),
    "rescue": ((), sent("rescue")),
    "unrescue": ((sent("rescue"),), sent("unrescue")),
    "snapshot": ((), sent("snapshot")),
    "shelve": ((), sent("shelve")),
    "unshelve": ((sent("shelve"),), unshelved),
    "unshelve, locked meanwhile": ((sent("shelve"),), functools.partial(unshelved, locked=True)),
    "rebuild": ((), sent("rebuild")),
    "resize": ((), HERE),
    "move": ((), AWAY),
    "move, locked meanwhile": ((), functools.partial(resized, host="two", locked=True)),
    "move back after an evacuation": ((evacuated_while_host_returns,), HERE),
    "live migration: move": ((), migrated_live),
    "confirm": ((HERE,), sent("confirm")),
    "revert": ((HERE,), sent("revert")),
    "confirm move": ((AWAY,), sent("confirm")),
    "revert move": ((AWAY,), sent("revert")),
    "evacuate, the old host returns": ((), functools.partial(evacuated, first="one")),
    "evacuate, the new host returns": ((), functools.partial(evacuated, first="two")),
    "delete": ((), sent("delete")),
    "delete after move": ((AWAY,), sent("delete")),
}


class SweepTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)

    def test_every_request_at_every_step(self) -> None:
        failures = []
        for name, kind, step in points():
            try:
                interrupt(name, kind, step)
            except Exception as error:  # of each point, to see which fail alike
                failures.append(f"{name}, {kind} at step {step}: {type(error).__name__}: {error}")
        self.assertEqual([], failures)

    def test_every_request_at_every_change_of_the_disks(self) -> None:
        self.useFixture(fixtures.MockPatchObject(os, "fsync"))  # what is synced is modelled
        failures, counts = [], Counter[str]()
        for name, kind, step in points_of_disk():
            choices, choice = 1, 0
            while choice < choices:
                counts[kind] += 1
                try:
                    choices = interrupt_disk(name, kind, step, choice)
                except Exception as error:
                    failures.append(f"{name}, {kind} at step {step}, state {choice}: {type(error).__name__}: {error}")
                choice += 1
        self.addDetail("points", text_content(str(dict(counts))))
        self.assertEqual([], failures)

    def test_every_request_at_every_read_and_action_of_root(self) -> None:
        """Let reads of the hosts' files fail, be empty or stale, and what root does fail, be late or never end."""
        failures, counts = [], Counter[str]()
        for name, kind, step, what in hardware.drawn(list(SWEPT), functools.partial(steps_of, scanned=True)):
            counts[f"{what}: {kind}"] += 1
            try:
                interrupt(name, kind, step, scanned=True)
            except Exception as error:
                failures.append(f"{name}, {what} at step {step} {kind}: {type(error).__name__}: {error}")
        self.addDetail("points", text_content(str(dict(counts))))
        self.assertEqual([], failures)

    def test_power_cut_within_an_unpause(self) -> None:
        for step in range(len(steps_of("unpause", watched=True)) + 1):
            interrupt_disk("unpause", POWER_CUT, step, 0)

    def test_start_after_a_kill_is_interrupted_too(self) -> None:
        self.tried_twice(interrupt_start, None, ("killed", "fails", *OF_ENGINE))

    def test_handling_of_a_fault_is_interrupted_too(self) -> None:
        self.tried_twice(interrupt_handling, ENGINE, ("fails", *OF_ENGINE))

    def tried_twice(self, interrupt: Callable[[str, int, str, int], None], at: Sequence[str] | None,
                    kinds: Sequence[str]) -> None:
        failures = []
        for pair in pairs(at, kinds):
            try:
                interrupt(*pair)
            except Exception as error:
                failures.append(f"{pair}: {type(error).__name__}: {error}")
        self.assertEqual([], failures)


def pairs(at: Sequence[str] | None, kinds: Sequence[str]) -> Iterator[tuple[str, int, str, int]]:
    """Yield :data:`PAIRS`, or what there is time for: a request, a step of it, a fault, and the step of the second one.

    :param at: what the step is; None for any
    """
    chosen, limit, began = random.Random(frame.first_seed()), frame.seconds(), time.monotonic()
    for number in itertools.count():
        if number == PAIRS if limit is None else time.monotonic() >= began + limit:
            return
        name = chosen.choice(list(SWEPT))
        steps = [step for step, what in enumerate(steps_of(name)) if at is None or what in at]
        if steps:
            yield name, chosen.choice(steps), chosen.choice(kinds), chosen.randrange(FIRST_STEPS)


def points() -> Iterator[tuple[str, str, int]]:
    """Yield the points of this run: at the gate one of each request and kind, and its share of the others."""
    for name, kind in itertools.product(SWEPT, KINDS):
        if kind == "other host restarts" and "move" not in name:
            continue
        steps = [step for step, what in enumerate(steps_of(name)) if kind not in OF_ENGINE or what in ENGINE]
        for step in levels.some(f"sweep {name} {kind}", steps, {0}):
            yield name, kind, step


def points_of_disk() -> Iterator[tuple[str, str, int]]:
    """Yield this run's share of the points at which the disk is full, and at which the power is cut."""
    for name in SWEPT:
        steps = steps_of(name, watched=True)
        possible = [(name, FULL, step) for step, what in enumerate(steps) if what == "disk"]
        possible += [(name, STALLS, step) for step, what in enumerate(steps) if what in ENGINE]
        possible += [(name, POWER_CUT, step) for step in range(len(steps) + 1)]
        yield from levels.some(f"disk {name}", possible, ())


@functools.cache
def steps_of(name: str, watched: bool = False, scanned: bool = False) -> list[str]:
    """Return the steps of an undisturbed request.

    :param watched: whether changes of the disks are steps
    :param scanned: whether reads of the hosts' files and actions of root are
    """
    machine, uuid = prepared(name, scanned)
    steps: list[str] = []

    def step(what: str = "database") -> None:
        if machine.cloud.current is not None:
            steps.append(what)
    try:
        SWEPT[name][1](machine, uuid)
        with mock.patch.object(machine.cloud, "step", step):
            machine.cloud.placement._step = machine.disk._step = step
            with machine.disk.watched() if watched else contextlib.nullcontext():
                machine.drain()
        return steps
    finally:
        machine.close()


def prepared(name: str, scanned: bool = False) -> tuple[Nova, str]:
    machine = Nova()
    uuid = next(iter(machine.cloud.instances))
    for request in SWEPT[name][0]:
        request(machine, uuid)
        machine.drain()
        machine.holds()  # notes what an evacuation has made anew
    for host in machine.hosts.values():
        host.scanned = scanned
    return machine, uuid


def interrupt(name: str, kind: str, step: int, scanned: bool = False) -> None:
    machine, uuid = prepared(name, scanned)
    SWEPT[name][1](machine, uuid)
    machine.cloud.faults = [(step, kind)]
    machine.drain()
    end(machine)


def interrupt_disk(name: str, kind: str, step: int, choice: int) -> int:
    """Let the disks be full from a step on, or cut the power.

    :param choice: which of the states that a power cut may leave it leaves
    :returns: how many there are
    """
    machine, uuid = prepared(name)
    SWEPT[name][1](machine, uuid)
    machine.cloud.faults = [(step, kind)]
    with machine.disk.watched():
        machine.drain()
    choices = machine.cut_power(choice) if kind == POWER_CUT else 1
    end(machine)
    return choices


def interrupt_handling(name: str, step: int, kind: str, second: int) -> None:
    """Let a request to the engine end so, and kill nova-compute at a step of what it does about that."""
    machine, uuid = prepared(name)
    SWEPT[name][1](machine, uuid)
    machine.cloud.faults = [(step, kind), (second, "killed")]
    machine.drain()
    end(machine)


def interrupt_start(name: str, step: int, kind: str, second: int) -> None:
    """Kill nova-compute at a step of a request, and let a fault meet a step of the start that follows."""
    machine, uuid = prepared(name)
    SWEPT[name][1](machine, uuid)
    machine.cloud.faults = [(step, "killed")]
    machine.drain()
    machine.cloud.faults = [(second, kind)]
    for host in machine.hosts.values():
        if host.process is None:
            machine.start(host)
    machine.drain()
    end(machine)


def end(machine: Nova) -> None:
    machine.cloud.faults = []
    machine.holds()
    machine.teardown()  # restarts, reboots servers in error hard, restarts, deletes
