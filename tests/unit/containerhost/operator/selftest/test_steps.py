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
from containerhost.devices.model import CharNode, LinkLayer
from containerhost.engines.contract import Executed
from containerhost.engines.local import LocalEngine
from containerhost.errors import HostActionFailed
from containerhost.inventory.scan import HostView
from containerhost.operator.selftest.steps import ADDRESSES, NAME, NAMES, NETDEV, PING, RPING, Outcome, SelfTest
from tests.unit.containerhost.allocation.allocatorcase import AllocatorTestCase, Marking
from tests.unit.nova.fakes import FakeEngine

STEPS = "containerhost.operator.selftest.steps"


class Driver(Marking):
    """Binds functions of the described host, whose interfaces are there at all times."""

    def bind(self, *arguments: object) -> None:
        pass

    unbind = reset = link_down_and_flush = rename_netdev = bind


class Engine(FakeEngine):
    """:ivar ends: exit statuses of programs; 0 for others
    :ivar seen: the commands, each with its container
    """

    def __init__(self, privileged: Marking) -> None:
        super().__init__()
        self._privileged = privileged
        self.ends: dict[str, int] = {}
        self.seen: list[tuple[str, ...]] = []

    def execute(self, name: str, command: Sequence[str], stdin: bytes, *, timeout: int) -> Executed:
        self.seen.append((name, *command))
        super().execute(name, command, stdin, timeout=timeout)
        return Executed(self.ends.get(command[0], 0), b"")

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


class StepsCase(AllocatorTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.privileged = Driver(mock.Mock())
        self.engine = Engine(self.privileged)
        for name, value in (
                (f"{STEPS}.HostView", lambda untainted: HostView(self.host, untainted=untainted)),
                (f"{STEPS}.DeviceAllocator", functools.partial(DeviceAllocator, host=self.host)),
                (f"{STEPS}.configured", lambda devices: {}),
                ("containerhost.linux.process.processes.Process.lives", property(lambda _: bool(self.engine.specs)))):
            self.useFixture(fixtures.MonkeyPatch(name, value))

    def outcomes(self, *devices: str, pair: Sequence[str] = (), **engine: bool) -> dict[str, tuple[Outcome, str]]:
        local = LocalEngine(self.engine, None, None, self.privileged, lambda raw, name: name, lambda name: None,
                            **engine)
        consumers = [Consumer("run", "lxd", NAME, str(number)) for number in range(2)]
        test = SelfTest(self.store, local, "default", consumers)
        test.run(devices, pair)
        self.assertEqual(({}, {}), (self.store.records(), self.engine.specs))
        return {row.step: (row.outcome, row.detail) for row in test.rows}


class StepsTest(StepsCase):
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


class PairTest(StepsCase):
    described = "mixed"

    def pair(self) -> list[str]:
        return [device.id for device in self.vfs if device.link_layer is LinkLayer.ETHERNET and device.rdma][:2]

    def test_each_of_two_containers_has_a_function_and_reaches_the_other(self) -> None:
        found = self.outcomes(self.gpus[0].id, pair=self.pair())
        self.assertEqual({Outcome.PASSED}, {found[step][0] for step in (
            "give a function to each of two containers", "ping between them", "rping between them",
            "clean when both have ended", "clean up")}, found)
        self.assertIn((NAMES[0], *PING, ADDRESSES[1]), self.engine.seen)
        self.assertIn((NAMES[1], *RPING, "-c", "-a", ADDRESSES[0]), self.engine.seen)
        for name, address in zip(NAMES, ADDRESSES, strict=True):
            self.assertIn((name, "ip", "address", "replace", f"{address}/24", "dev", NETDEV), self.engine.seen)

    def test_engine_that_sets_addresses_is_left_to_it(self) -> None:
        self.outcomes(self.gpus[0].id, pair=self.pair(), sets_addresses=True)
        self.assertNotIn("ip", {program for _, program, *_ in self.engine.seen})

    def test_host_without_rping_cannot_show_it(self) -> None:
        self.engine.ends = {"rping": 127}
        found = self.outcomes(self.gpus[0].id, pair=self.pair())
        self.assertEqual((Outcome.ABSENT, Outcome.PASSED), (
            found["rping between them"][0], found["clean when both have ended"][0]))

    def test_functions_that_do_not_reach_each_other_fail_and_are_clean(self) -> None:
        self.useFixture(fixtures.MonkeyPatch(f"{STEPS}.REACH_TIMEOUT", 0))
        self.engine.ends = {"ping": 1, "rping": 1}
        found = self.outcomes(self.gpus[0].id, pair=self.pair())
        for program in ("ping", "rping"):
            self.assertEqual(Outcome.FAILED, found[f"{program} between them"][0])
        self.assertEqual(Outcome.PASSED, found["clean when both have ended"][0])
