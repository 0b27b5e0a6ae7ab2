# SPDX-License-Identifier: Apache-2.0
"""Several processes claim, release and clean the same devices at once: none is cleaned while another one has it."""

import functools
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import IO, cast

import fixtures
import testtools

from containerhost import errors
from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.refusals import Request
from containerhost.allocation.states import State
from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.devices.model import Kind
from containerhost.inventory.scan import HostView, scan
from containerhost.linux.sysfs import Host
from containerhost.privileged import Privileged
from tests.fakehost import description, tree

REPOSITORY = Path(__file__).parents[4]
PROCESSES, ROUNDS = 5, 40
EXPECTED = (errors.DeviceHeld, errors.DeviceNotFound, errors.DeviceUnhealthy, errors.ScrubFailed)


class Watching(Privileged):
    """Resets GPUs, which takes a while, and notes what the records say of a GPU meanwhile.

    :ivar wrong: resets of GPUs that had no record, another one at their end, or one that does not tell of the reset
    """

    def __init__(self, store: AllocationStore, chance: random.Random) -> None:
        self._owners = store
        self._chance = chance
        self.wrong: list[str] = []
        self.resets = 0

    def users(self, nodes: Collection[tuple[int, int]]) -> tuple[str, ...]:
        return ()

    def mark_reset(self, address: str, counters: Mapping[str, int]) -> None:
        pass

    def reset_gpu(self, vendor: str, address: str, others: Collection[str] = ()) -> bool:
        before = self._owners.records().get(address)
        time.sleep(self._chance.uniform(0, 0.03))
        after = self._owners.records().get(address)
        self.resets += 1
        if before is None or before != after or before.state not in (State.CLEANING, State.ATTACHED):
            self.wrong.append(f"{address}: {before} -> {after}")
        if self._chance.random() < 0.4:
            raise errors.HostActionFailed("it does not want to")
        return True


def race(root: str, directory: str, name: str) -> None:
    """Act at random when told to on standard input, as the drivers' processes and the operator's do."""
    host, store, chance = Host(Path(root)), AllocationStore(Path(directory)), random.Random(name)
    watching = Watching(store, chance)
    allocator = DeviceAllocator(store, lambda: HostView(host), watching, host=host)
    gpus = [device.id for device in scan(host).devices if device.kind is Kind.GPU]
    names = [Consumer("test", "lxd", f"c{number}", f"uuid{number}") for number in range(3)]
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(ROUNDS):
        gpu, consumer = chance.choice(gpus), chance.choice(names)
        act = chance.choice((
            functools.partial(allocator.acquire, [Request(gpu)], consumer),
            functools.partial(allocator.release, consumer),
            functools.partial(allocator.release_device, gpu, consumer, None),
            functools.partial(allocator.repair.clean, gpu),
            functools.partial(allocator.repair.reset_devices, consumer),
            functools.partial(allocator.reconciler.reconcile, "test", "lxd",
                              [each.container for each in chance.sample(names, 2)])))
        try:
            act()
        except EXPECTED:
            continue
    print(json.dumps([watching.resets, watching.wrong]))


class Races(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.root = Path(self.useFixture(fixtures.TempDir()).path)
        self.directory = Path(self.useFixture(fixtures.TempDir()).path) / "owners"
        tree.write(description.load("small"), self.root)

    def test_device_is_never_cleaned_while_another_owner_has_it(self) -> None:
        program = f"from {__name__} import race; import sys; race(*sys.argv[1:])"
        racers = [subprocess.Popen([sys.executable, "-c", program, str(self.root), str(self.directory), str(number)],
                                   cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                  for number in range(PROCESSES)]
        for racer in racers:
            self.assertEqual("ready\n", cast("IO[str]", racer.stdout).readline())
        for racer in racers:
            cast("IO[str]", racer.stdin).write("\n")
            cast("IO[str]", racer.stdin).flush()
        results = [json.loads(racer.communicate(timeout=300)[0]) for racer in racers]
        self.assertGreater(sum(resets for resets, _ in results), PROCESSES)
        self.assertEqual([], [text for _, wrong in results for text in wrong])


class Waiting(testtools.TestCase):
    """One process cleans a device and takes long."""

    def setUp(self) -> None:
        super().setUp()
        root = Path(self.useFixture(fixtures.TempDir()).path)
        tree.write(description.load("small"), root)
        self.host = Host(root)
        self.store = AllocationStore(Path(self.useFixture(fixtures.TempDir()).path) / "owners", work_limit=0.2)
        self.gpu = next(device.id for device in scan(self.host).devices if device.kind is Kind.GPU)
        self.owner = Consumer("test", "lxd", "c1", "uuid1")
        self.reached, self.free = threading.Event(), threading.Event()
        self.addCleanup(self.free.set)

    def allocator(self, privileged: Privileged) -> DeviceAllocator:
        return DeviceAllocator(self.store, lambda: HostView(self.host), privileged, host=self.host)

    def test_others_are_told_in_time_and_change_nothing(self) -> None:
        test = self

        class Slow(Watching):
            def reset_gpu(self, vendor: str, address: str, others: Collection[str] = ()) -> bool:
                test.reached.set()
                return test.free.wait(60)

        class Forbidden(Watching):
            def reset_gpu(self, vendor: str, address: str, others: Collection[str] = ()) -> bool:
                raise AssertionError("two processes clean one GPU")

        slow = self.allocator(Slow(self.store, random.Random(1)))
        other = self.allocator(Forbidden(self.store, random.Random(1)))
        slow.acquire([Request(self.gpu)], self.owner)
        self.store.block(self.gpu, "not clean")
        cleaning = threading.Thread(target=slow.release, args=(self.owner,))
        cleaning.start()
        self.assertTrue(self.reached.wait(60))
        before = self.store.records()
        (complaint,) = other.release(self.owner)
        self.assertIn("another process", complaint)
        self.assertRaises(errors.DeviceBusy, other.repair.clean, self.gpu)
        self.assertEqual(before, self.store.records())
        self.free.set()
        cleaning.join(60)
        self.assertEqual({}, self.store.records())
