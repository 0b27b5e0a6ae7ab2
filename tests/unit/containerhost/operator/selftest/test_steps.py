# SPDX-License-Identifier: Apache-2.0
"""Test the steps of the self-test on an engine in memory: what a real host's driver, and several GPUs, change."""

import dataclasses
import functools
import os
import types
from collections.abc import Sequence
from typing import Any
from unittest import mock

import fixtures

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.store import Consumer
from containerhost.devices.grants import Grant
from containerhost.devices.model import CharNode
from containerhost.engines.local import LocalEngine
from containerhost.errors import HostActionFailed
from containerhost.inventory.scan import HostView
from containerhost.operator.selftest.steps import NAME, Outcome, SelfTest
from tests.unit.containerhost.allocation.allocatorcase import AllocatorTestCase, Marking
from tests.unit.nova.fakes import FakeEngine

STEPS = "containerhost.operator.selftest.steps"


class Engine(FakeEngine):
    def __init__(self, privileged: Marking) -> None:
        super().__init__()
        self._privileged = privileged

    def pid(self, name: str) -> int:
        return os.getpid()

    def command(self, name: str, command: Sequence[str]) -> types.SimpleNamespace:
        """A process in the container that has the last word's node open."""
        self._privileged.using, self._privileged.has_client = ("python3 (17)",), True

        def end() -> None:
            self._privileged.using, self._privileged.has_client = (), False

        return types.SimpleNamespace(kill=end, close=end)

    def delete(self, name: str) -> None:
        super().delete(name)
        self._privileged.using, self._privileged.has_client = (), False


class Comparing(Engine):
    def verify(self, name: str, grants: Sequence[Grant]) -> None:
        if {grant.nodes for grant in grants} != {grant.nodes for grant in self.specs[name].grants}:
            raise HostActionFailed("it sees other nodes")


class Renumbering(DeviceAllocator):
    """Devices whose nodes are other ones each time that they are given, as after a driver was bound anew."""

    times = 0

    def acquire(self, *words: Any) -> tuple[Grant, ...]:
        self.times += 1
        node = CharNode(f"/dev/dri/card{self.times}", 226, self.times)
        return tuple(dataclasses.replace(grant, nodes=(node,)) for grant in super().acquire(*words))


class StepsTest(AllocatorTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.privileged = Marking(mock.Mock())
        self.engine = Engine(self.privileged)
        for name, value in (
                (f"{STEPS}.HostView", lambda untainted: HostView(self.host, untainted=untainted)),
                (f"{STEPS}.DeviceAllocator", functools.partial(DeviceAllocator, host=self.host)),
                (f"{STEPS}.configured", lambda devices: {}),
                ("containerhost.linux.process.processes.Process.lives", property(lambda _: NAME in self.engine.specs))):
            self.useFixture(fixtures.MonkeyPatch(name, value))

    def outcomes(self, *devices: str) -> dict[str, tuple[Outcome, str]]:
        local = LocalEngine(self.engine, None, None, self.privileged, lambda raw, name: name, lambda name: None)
        consumers = [Consumer("run", "lxd", NAME, str(number)) for number in range(2)]
        test = SelfTest(self.store, local, "default", consumers)
        test.run(devices)
        self.assertEqual({}, self.store.records())
        return {row.step: (row.outcome, row.detail) for row in test.rows}

    def test_every_step_where_the_driver_resets(self) -> None:
        gpu = self.gpus[0].id
        found = self.outcomes(gpu)
        self.assertEqual({Outcome.PASSED}, {outcome for outcome, _ in found.values()}, found)
        self.assertIn("clean: it was reset", found[f"take {gpu} while it runs"][1])
        self.assertIn("blocked", found[f"take {gpu} from a process that has it open"][1])

    def test_driver_that_resets_nothing_keeps_a_device_until_the_container_ends(self) -> None:
        gpu = self.gpus[0].id
        self.privileged.able = False
        found = self.outcomes(gpu)
        self.assertEqual({Outcome.PASSED}, {outcome for outcome, _ in found.values()}, found)
        self.assertIn("blocked until the container ends", found[f"take {gpu} while it runs"][1])

    def test_nodes_of_a_device_that_is_given_again_are_other_ones(self) -> None:
        self.engine = Comparing(self.privileged)
        allocator = functools.partial(Renumbering, host=self.host)
        self.useFixture(fixtures.MonkeyPatch(f"{STEPS}.DeviceAllocator", allocator))
        found = self.outcomes(self.gpus[0].id, self.gpus[1].id)
        self.assertEqual({Outcome.PASSED}, {outcome for outcome, _ in found.values()}, found)

    def test_each_gpu_computes_by_itself(self) -> None:
        self.outcomes(self.gpus[0].id, self.gpus[1].id)
        self.assertEqual([("env", f"CUDA_VISIBLE_DEVICES={gpu.uuid}", "python3", "-") for gpu in self.gpus[:2]],
                         [command for command, stdin in self.engine.executed if stdin])
