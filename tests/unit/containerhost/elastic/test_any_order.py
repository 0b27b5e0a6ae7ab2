# SPDX-License-Identifier: Apache-2.0
"""Whatever happens in whatever order, rounds bring all containers to what the policy says, and nobody else anywhere."""

import json
import random
from pathlib import Path

import fixtures
import testtools

from containerhost.engines import bounds
from containerhost.engines.capabilities import Size
from containerhost.engines.contract import Status
from containerhost.guest import resources
from tests import levels
from tests.unit.containerhost.elastic.fakes import Container, GiB, Killed, World

SEEDS = levels.budget(gate=16, exhaustive=40)
EVENTS = 12
NAMES = "abcd"


class AnyOrderTest(testtools.TestCase):
    def happen(self) -> None:
        """Let one thing happen, then a round, which may be killed."""
        name = self.random.choice(NAMES)
        there = self.engine.containers_.get(name)
        self.random.choice((self.come, self.come, self.go, self.stop, self.start, self.change_host, self.change_guest,
                            self.resize, self.opt_out, self.wait))(name, there)
        self.engine.kill_at(self.random.choice((0, 0, 0, self.random.randint(1, 20))))
        try:
            self.world.rounds(self.service)
        except Killed:
            self.service = self.world.service()
        finally:
            self.engine.hook = lambda what: None

    def come(self, name: str, there: Container | None) -> None:
        if there is None:
            least = self.random.randint(1, 2)
            self.engine.add(name, (least, self.random.randint(least, 6)), (GiB, self.random.choice((GiB, 2 * GiB))))

    def go(self, name: str, there: Container | None) -> None:
        self.engine.containers_.pop(name, None)

    def stop(self, name: str, there: Container | None) -> None:
        if there is not None:
            there.status = Status.STOPPED

    def start(self, name: str, there: Container | None) -> None:
        if there is not None:
            there.status, there.pid = Status.RUNNING, there.pid + 1000

    def change_host(self, name: str, there: Container | None) -> None:
        self.cores = self.random.choice((4, 6, 8))
        self.world.set_cores(self.cores)
        self.engine.containers_["own"].own_cores = frozenset(self.random.sample(range(4), self.random.randint(0, 2)))

    def change_guest(self, name: str, there: Container | None) -> None:
        for guests in (self.files.listening, self.files.following, self.files.refusing):
            guests.symmetric_difference_update({name} if self.random.random() < 0.5 else ())

    def resize(self, name: str, there: Container | None) -> None:
        """Resize it, as a driver does."""
        if there is not None and bounds.LABEL in there.labels:
            there.labels[resources.LABEL] = resources.resized(there.labels.get(resources.LABEL), 6, (), 2 * GiB)
            there.size = None
            there.version += 1

    def opt_out(self, name: str, there: Container | None) -> None:
        if there is not None:
            there.labels.pop(bounds.LABEL, None)
            there.version += 1

    def wait(self, name: str, there: Container | None) -> None:
        self.world.now += 40

    def test_rounds_come_to_rest(self) -> None:
        for seed in range(SEEDS):
            with self.subTest(seed=seed):
                self.random = random.Random(seed)
                self.world = World(Path(self.useFixture(fixtures.TempDir()).path), 8)
                self.engine, self.files = self.world.engine, self.world.files
                self.service = self.world.service()
                self.engine.add("own", None)
                self.engine.check = self.require_given_back
                self.cores = 8
                for _ in range(EVENTS):
                    self.happen()
                self.world.rounds(self.service, 20)
                self.assert_at_rest()

    def members(self) -> dict[str, Container]:
        return {name: each for name, each in self.engine.containers_.items()
                if bounds.LABEL in each.labels and each.status is Status.RUNNING}

    def fit(self) -> bool:
        """Return whether the least of all fits on the host."""
        fewest = sum(bounds.parse(each.labels).cores.least for each in self.members().values())
        return fewest <= len(frozenset(range(self.cores)) - self.engine.containers_["own"].own_cores)

    def require_given_back(self, name: str, size: Size) -> None:
        """Require that nobody gets a core that another one still has."""
        mine = self.engine.containers_[name].size
        more = size.cores - (mine.cores if mine else frozenset())
        for other, each in self.members().items():
            if other != name and each.size and self.fit():
                self.assertFalse(more & each.size.cores, f"{name} gets cores of {other}")

    def assert_at_rest(self) -> None:
        self.assertEqual({}, self.service.steps)
        own = self.engine.containers_["own"]
        self.assertEqual((None, 1), (own.size, own.version))
        taken: list[int] = []
        for name, each in self.members().items():
            allowed = bounds.parse(each.labels)
            told = json.loads(each.labels[resources.LABEL])
            self.assertEqual((sorted(each.size.cores), each.size.memory), (told["cpus"]["cores"], told["memory"]))
            self.assertTrue(allowed.cores.least <= len(each.size.cores) <= allowed.cores.most, (name, each))
            taken += each.size.cores
            if name not in self.files.refusing:
                self.assertEqual(told, self.files.document(name))
        self.assertFalse(set(taken) & own.own_cores)
        if self.fit():
            self.assertEqual(len(taken), len(set(taken)), "two have the same core")
        rows = self.service.plan()
        self.assertEqual([row["wanted"] for row in rows], [row["count"] for row in rows])
        self.engine.asked.clear()
        self.world.rounds(self.service, 2)
        self.assertEqual([("measured",)] * 2, self.engine.asked)
