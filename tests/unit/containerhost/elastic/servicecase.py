# SPDX-License-Identifier: Apache-2.0
"""Run rounds of the service in a world in memory."""

import json
from pathlib import Path

import fixtures
import testtools

from containerhost.guest import resources
from tests.unit.containerhost.elastic.fakes import World


class ServiceCase(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.world = World(self.directory)
        self.engine, self.files = self.world.engine, self.world.files

    def share_cores(self, **options: object) -> None:
        """Let two containers share four cores."""
        for name in ("a", "b"):
            self.engine.add(name, (1, 4))
        self.world.rounds(self.world.service(**options), 3)

    def assert_settled(self, **counts: int) -> None:
        cores = self.world.cores()
        self.assertEqual(counts, {name: len(own) for name, own in cores.items()})
        self.assertEqual(sum(counts.values()), len(set().union(*cores.values())))
        for name in counts:
            told = json.loads(self.engine.containers_[name].labels[resources.LABEL])
            self.assertEqual(sorted(cores[name]), told["cpus"]["cores"])
            self.assertEqual(told, self.files.document(name))
