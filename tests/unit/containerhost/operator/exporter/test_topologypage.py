# SPDX-License-Identifier: Apache-2.0
"""Test the page with the host's map, as the exporter serves it beside the metrics."""

import json
import urllib.error
import urllib.request

from containerhost.operator.drawing import document
from containerhost.operator.drawing.hostreader import read_map
from containerhost.operator.exporter import server
from containerhost.operator.exporter.topologypage import PATH, TopologyPage
from tests.ports import free_port
from tests.unit.containerhost.operator.exporter.test_families import GPU, ExporterCase


class TopologyPageTest(ExporterCase):
    def setUp(self) -> None:
        super().setUp()
        address = f"127.0.0.1:{free_port()}"
        server.serve(address, server.HostCollector(self.host, self.store), {PATH: TopologyPage(self.host, self.store)})
        self.url = f"http://{address}"

    def test_map_of_now(self) -> None:
        for claimed in (False, True):
            if claimed:
                self.claim(GPU)
            with urllib.request.urlopen(self.url + PATH, timeout=10) as answer:
                self.assertEqual(("application/json", "nosniff"),
                                 (answer.headers["Content-Type"], answer.headers["X-Content-Type-Options"]))
                found = document.load(json.load(answer))
            self.assertEqual(read_map(self.host, self.store.records()), found)
            self.assertEqual(("instance-00000001",) if claimed else (), found.owners)

    def test_metrics_are_where_they_were(self) -> None:
        for path in ("/metrics", "/"):
            with urllib.request.urlopen(self.url + path, timeout=10) as answer:
                self.assertIn(b"containerhost_device_info", answer.read())

    def test_records_that_cannot_be_read(self) -> None:
        self.claim(GPU)
        (self.store.directory / "0000:3b:00.0.json").write_text("?")
        error = self.assertRaises(urllib.error.HTTPError, urllib.request.urlopen, self.url + PATH, timeout=10)
        self.addCleanup(error.close)
        self.assertEqual(503, error.code)
        self.assertIn("0000:3b:00.0.json cannot be trusted", error.read().decode())
