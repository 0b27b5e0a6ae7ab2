# SPDX-License-Identifier: Apache-2.0
"""Counts of what was done to devices, in a file that all processes share."""

import multiprocessing
from pathlib import Path

import fixtures
import testtools

from containerhost.allocation.timings import Timings
from tests.unit.containerhost.allocation.test_timings import count
from tests.unit.containerhost.hosts import MEMORY


class TimingsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir(rootdir=MEMORY)).path)
        self.timings = Timings(self.directory)

    def totals(self) -> dict[tuple[str, str], int]:
        return {(one.operation.value, one.result.value): sum(one.counts) for one in self.timings.read()}

    def test_processes_at_once_lose_no_count(self) -> None:
        context = multiprocessing.get_context("fork")
        processes = [context.Process(target=count, args=(self.directory, 25)) for _ in range(4)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        self.assertEqual({("acquire", "done"): 100}, self.totals())
