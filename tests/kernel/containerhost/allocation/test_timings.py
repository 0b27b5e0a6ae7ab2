# SPDX-License-Identifier: Apache-2.0
"""Counts of what was done to devices, in a file that all processes share."""

import multiprocessing

from tests.unit.containerhost.allocation.test_timings import TimingsCase, count


class TimingsTest(TimingsCase):
    def test_processes_at_once_lose_no_count(self) -> None:
        context = multiprocessing.get_context("fork")
        processes = [context.Process(target=count, args=(self.directory, 25)) for _ in range(4)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        self.assertEqual({("acquire", "done"): 100}, self.totals())
