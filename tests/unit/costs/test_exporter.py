# SPDX-License-Identifier: Apache-2.0
"""Measure the cost of the exporter's pages."""

from pathlib import Path

import fixtures

from containerhost.allocation.store import AllocationStore
from containerhost.operator.drawing.hostreader import read_map
from containerhost.operator.exporter.families import families
from containerhost.operator.exporter.sample import read
from tests.unit.containerhost.hosts import MEMORY, shared
from tests.unit.costs.counting import CostCase
from tests.unit.nova import fakes


class ExporterTest(CostCase):
    def setUp(self) -> None:
        super().setUp()
        self.engine = fakes.FakeEngine()
        self.store = AllocationStore(Path(self.useFixture(fixtures.TempDir(rootdir=MEMORY)).path))

    def test_scrape(self) -> None:
        with self.costing("exporter: scrape"):
            found = list(families(read(shared("small"), self.store)))
        self.assertNotEqual([], found)

    def test_topology(self) -> None:
        with self.costing("exporter: topology"):
            found = read_map(shared("small"), self.store.records())
        self.assertNotEqual((), found.nodes)
