# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes the exporter, which runs without privileges, of a host with servers; its map follows."""

from tests.functional.nova.test_pci_health import HealthServers  # isort: skip (decides how nova runs)

import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import fixtures
import yaml

from containerhost.operator.drawing import document
from containerhost.operator.drawing.hostmap import Status
from containerhost.operator.exporter.topologypage import PATH
from tests.functional.kmsg import xid
from tests.functional.nova.base import GPU_ALIAS, VF_ALIAS
from tests.ports import free_port
from tests.waiting import await_that
from tools.units import confined

ROOT = Path(__file__).parents[3]
ETC = ROOT / "etc"
COMMAND = "import sys; from containerhost.operator.cli import main; sys.exit(main())"


class Running(fixtures.Fixture):
    """A program that runs until the end of the test."""

    def __init__(self, *command: str) -> None:
        self._command = command

    def _setUp(self) -> None:
        process = subprocess.Popen(self._command, cwd=ROOT)
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)


class MetricsTest(HealthServers):
    def setUp(self) -> None:
        if shutil.which("prometheus") is None:
            self.skipTest("prometheus is not installed: see bindep.txt")
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        exporter, prometheus = free_port(), free_port()
        self.useFixture(Running(*confined("containerhost-exporter"), sys.executable, "-c", COMMAND, "exporter",
                                "--listen", f"127.0.0.1:{exporter}", "--owners", str(self.state / "owners")))
        self.url = f"http://127.0.0.1:{prometheus}/api/v1/query"
        self.topology = f"http://127.0.0.1:{exporter}{PATH}"
        configuration = self.directory / "prometheus.yml"
        configuration.write_text(yaml.safe_dump({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(ETC / "prometheus/alerts.yaml")],
            "scrape_configs": [{"job_name": "containerhost",
                                "static_configs": [{"targets": [f"127.0.0.1:{exporter}"]}]}]}))
        self.useFixture(Running("prometheus", f"--config.file={configuration}", "--log.level=error",
                                f"--storage.tsdb.path={self.directory / 'data'}",
                                f"--web.listen-address=127.0.0.1:{prometheus}"))

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Ask Prometheus; nothing while it does not answer."""
        try:
            with urllib.request.urlopen(f"{self.url}?{urllib.parse.urlencode({'query': expression})}") as answer:
                return list(json.load(answer)["data"]["result"])
        except ConnectionError:
            return []
        except urllib.error.HTTPError as error:  # it starts, or does not understand the question
            if error.code == 503:
                return []
            raise AssertionError(f"{expression}: {error.read()!r}") from error
        except urllib.error.URLError:
            return []

    def devices(self, expression: str) -> set[str]:
        return {sample["metric"]["device"] for sample in self.query(expression)}

    def await_devices(self, expected: set[str], expression: str) -> None:
        await_that(lambda: self.devices(expression) == expected, f"{expression} has {expected}", limit=120, pause=1)

    def drawn(self) -> dict[str, tuple[Status, str | None]]:
        """Return state and container of every card and part on the exporter's map."""
        with urllib.request.urlopen(self.topology, timeout=30) as answer:
            found = document.load(json.load(answer))
        cards = [card for node in found.nodes for group in node.groups for card in group.cards]
        return {one.id: (one.status, one.owner) for card in cards for one in (card, *card.parts)}

    def test_metrics_and_map_follow_servers_and_health(self) -> None:
        self.await_devices({device.id for device in self.devices_before}, "containerhost_device_healthy == 1")
        server = self.server(self.flavor(pci_passthrough__alias=f"{GPU_ALIAS}:1,{VF_ALIAS}:1"))
        held = set(self.held())
        name = server["OS-EXT-SRV-ATTR:instance_name"]
        self.assertEqual(2, len(held))
        self.await_devices(held, f'containerhost_allocation{{container="{name}",driver="nova",state="attached"}}')
        (function,) = (device.id for device in self.devices_before if device.id in held and device.rdma)
        drawn = self.drawn()
        self.assertEqual({device.id for device in self.devices_before}, drawn.keys())
        self.assertEqual(dict.fromkeys(held, (Status.HELD, name)),
                         {device: state for device, state in drawn.items() if state[1]})
        self.await_devices({function}, f'containerhost_rdma_port_received_bytes_total{{container="{name}"}}')
        (gpu,) = held - {function}
        self.control.say(xid(gpu, 95))
        self.await_devices({gpu}, "containerhost_device_healthy == 0")
        self.await_devices({gpu}, 'ALERTS{alertname="HeldDeviceSick"}')
        self.assertEqual((Status.SICK, name), self.drawn()[gpu])
        for panel in json.loads((ETC / "grafana/containerhost.json").read_text())["panels"]:
            for target in panel["targets"]:
                self.query(target["expr"].replace("$instance", ".*").replace("$__rate_interval", "1m"))
        self._delete_server(server)
        self.await_devices(set(), "containerhost_allocation")
        self.assertEqual(set(), {owner for _, owner in self.drawn().values() if owner})
        for operation in ("acquire", "release"):
            count = f'containerhost_operation_seconds_count{{driver="nova",operation="{operation}",result="done"}} > 0'
            await_that(lambda query=count: self.query(query), count, pause=1)
        self.assert_nothing_left()
