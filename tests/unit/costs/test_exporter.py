# SPDX-License-Identifier: Apache-2.0
"""Measure the cost of a scrape."""

from pathlib import Path

import fixtures

from containerhost.allocation.store import AllocationStore
from containerhost.exporter.families import families
from containerhost.exporter.sample import read
from tests.unit.containerhost.hosts import MEMORY, shared
from tests.unit.costs.counting import CostCase
from tests.unit.nova import fakes


class ExporterTest(CostCase):
    def test_scrape(self) -> None:
        self.engine = fakes.FakeEngine()
        directory = Path(self.useFixture(fixtures.TempDir(rootdir=MEMORY)).path)
        with self.costing("exporter: scrape"):
            found = list(families(read(shared("small"), AllocationStore(directory))))
        self.assertNotEqual([], found)
