# SPDX-License-Identifier: Apache-2.0
import tempfile
from pathlib import Path

import testtools

from bench.manyhosts import figures

LOG = """\
1.000 0.0100 0.0050 GET /allocation_candidates?limit=1000
2.000 0.0200 0.0100 PUT /allocations/6f9ed9e0-1d1b-4a6e-8d2e-3f6b7c1a2b3c?
3.000 0.0400 0.0100 PUT /allocations/7f9ed9e0-1d1b-4a6e-8d2e-3f6b7c1a2b3c?
"""


class FiguresTest(testtools.TestCase):
    def test_requests_are_counted_by_kind_from_an_offset(self) -> None:
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(LOG)
            file.flush()
            found = figures.placement_requests(Path(file.name), LOG.index("2.000"))
        self.assertEqual({"PUT /allocations/ID": [(0.02, 0.01), (0.04, 0.01)]}, found)

    def test_percentiles(self) -> None:
        seconds = [float(number) for number in range(1, 101)]
        self.assertEqual([50.0, 95.0, 99.0], [figures.percentile(seconds, part) for part in (0.5, 0.95, 0.99)])
        self.assertEqual(7.0, figures.percentile([7.0], 0.99))
