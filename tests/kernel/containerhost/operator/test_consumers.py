# SPDX-License-Identifier: Apache-2.0
"""Nova, OpenNebula, Slurm and ``containerhost run`` want the same GPUs at once: none is given to two of them."""

import contextlib
import fcntl
import json
import logging
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import fixtures
import testtools

from containerhost.allocation.refusals import Request
from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.errors import DeviceHeld
from containerhost.inventory.scan import scan
from containerhost.linux.sysfs import Host
from containerhost.operator.runtimes.run import Runner, Wanted
from containerhost.operator.slurm.client import Files, Slurm
from containerhost.operator.slurm.jobs import JobDevices
from tests import levels
from tests.fakehost import description, tree
from tests.kernel.containerhost.operator.test_runs import GPUS, ROOT, allocator
from tests.unit.containerhost.hosts import MEMORY

DRIVERS = ("nova", "lxdone", "slurm", "run")
ROUNDS = levels.budget(gate=6, exhaustive=50)  # uses by each, who tries again after a refusal
PAUSE = 0.02  # s after a refusal, at most
PROGRAM = "import sys; from tests.kernel.containerhost.operator import test_consumers as t; t.race(*sys.argv[1:])"
TIMEOUT = 600  # s


class Scheduler(Slurm):
    """Choose a GPU as Slurm does, which does not know what others have.

    :ivar job, gpu: the one that it has started
    :ivar requeued: jobs that were refused
    """

    def __init__(self, files: dict[str, Files]) -> None:
        super().__init__("node1")
        self._files = files
        self.job, self.gpu, self.requeued = "", "", set[str]()

    def taken(self, job: str) -> tuple[Files, ...]:
        return (self._files[self.gpu],)

    def devices(self) -> dict[str, tuple[Files, ...]]:
        return {"gpu": tuple(self._files.values())}

    def jobs(self) -> frozenset[str]:
        return frozenset({self.job})

    def reason(self) -> str:
        return ""

    def drain(self, reason: str) -> None:
        raise AssertionError(f"the node is drained: {reason}")

    def requeue(self, job: str, reason: str, hold: bool) -> None:
        self.requeued.add(job)


class Racer:
    """Use a GPU as one of the drivers does. A lock on a file stands for its use: a second user does not get it.

    :ivar wrong: GPUs that another one used meanwhile
    """

    def __init__(self, directory: Path, driver: str) -> None:
        self._directory, self._driver = directory, driver
        self._store, self._allocator = AllocationStore(directory / "owners"), allocator(directory)
        self._host = Host(directory / "host")
        self._slurm = Scheduler({device.id: (device.nodes[0].path,) for device in scan(self._host).devices
                                 if device.id in GPUS})
        self._jobs = JobDevices(self._store, self._allocator, self._slurm)
        self.wrong: list[str] = []

    def use(self, gpu: str, number: int) -> bool:
        """:returns: whether it had the GPU"""
        act = {"slurm": self.as_job, "run": self.as_run}.get(self._driver, self.as_container)
        try:
            return act(gpu, number)
        except DeviceHeld:
            return False

    def as_container(self, gpu: str, number: int) -> bool:
        consumer = Consumer(self._driver, "lxd", f"c{number}", f"{number}")
        self._allocator.acquire([Request(gpu)], consumer)
        with self.used(gpu):
            if self._allocator.held_by(consumer) != {gpu}:
                self.wrong.append(f"the records do not name {consumer} for {gpu}")
        self.wrong += self._allocator.release(consumer)
        return True

    def as_job(self, gpu: str, number: int) -> bool:
        self._slurm.job, self._slurm.gpu = str(number), gpu
        self._jobs.allocate(str(number), "test")
        if str(number) not in self._slurm.requeued:
            with self.used(gpu):
                self._jobs.reconcile()
        if not self._jobs.release(str(number), "test"):
            self.wrong.append(f"{gpu} is not free after a job")
        return str(number) not in self._slurm.requeued

    def as_run(self, gpu: str, number: int) -> bool:
        runner = Runner(self._store, self._allocator, self._host)
        if runner.run(("flock", "--nonblock", str(self._directory / f"used-{gpu}"), "true"), Wanted(devices=(gpu,))):
            self.wrong.append(f"{gpu} has two holders")
        return True

    @contextlib.contextmanager
    def used(self, gpu: str) -> Iterator[None]:
        with open(self._directory / f"used-{gpu}", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.wrong.append(f"{gpu} has two holders")
            yield


def race(directory: str, driver: str, rounds: str) -> None:
    """Use GPUs at random when told to on standard input."""
    logging.disable(logging.ERROR)  # a refused job is logged
    racer, chance = Racer(Path(directory), driver), random.Random(driver)
    print("ready", flush=True)
    sys.stdin.readline()
    had = tries = 0
    while had < int(rounds):
        if racer.use(chance.choice(sorted(GPUS)), tries):
            had += 1
        else:
            time.sleep(chance.uniform(0, PAUSE))
        tries += 1
    print(json.dumps([tries, racer.wrong]))


class ConsumersTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir(rootdir=MEMORY)).path)
        tree.write(description.load("small"), self.directory / "host")

    def test_no_gpu_has_two_holders(self) -> None:
        racers = [subprocess.Popen([sys.executable, "-c", PROGRAM, self.directory, driver, str(ROUNDS)], cwd=ROOT,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ)
                  for driver in DRIVERS]
        for racer in racers:
            self.addCleanup(racer.wait)
            self.addCleanup(racer.kill)
        for racer in racers:
            self.assertEqual("ready\n", cast("IO[str]", racer.stdout).readline())
        for racer in racers:
            cast("IO[str]", racer.stdin).write("\n")
            cast("IO[str]", racer.stdin).flush()
        results: dict[str, Any] = {driver: json.loads(racer.communicate(timeout=TIMEOUT)[0])
                                   for driver, racer in zip(DRIVERS, racers, strict=True)}
        self.assertEqual({driver: [] for driver in DRIVERS}, {driver: wrong for driver, (_, wrong) in results.items()})
        self.assertLess(len(DRIVERS) * ROUNDS, sum(tries for tries, _ in results.values()), "nobody was refused")
        self.assertEqual({}, AllocationStore(self.directory / "owners").records())

    def test_second_holder_is_noticed(self) -> None:
        """The test above would fail if a record were lost."""
        gpu = min(GPUS)
        first, second = Racer(self.directory, "nova"), Racer(self.directory, "run")
        with first.used(gpu):
            self.assertTrue(second.use(gpu, 1))
        self.assertEqual([f"{gpu} has two holders"], second.wrong)
