# SPDX-License-Identifier: Apache-2.0
"""The dashboard and the alerts ask for metrics that the exporter has, and Prometheus understands them."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import testtools
import yaml

from containerhost.allocation.store import AllocationStore
from containerhost.operator.exporter.families import families, names
from containerhost.operator.exporter.sample import read
from tests.unit.containerhost.hosts import shared

ETC = Path(__file__).parents[3] / "etc"
METRIC = re.compile(r"containerhost_\w+")


class Monitoring(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.known = names(families(read(shared("small"), AllocationStore(Path("/nonexistent")))))
        self.dashboard = json.loads((ETC / "grafana/containerhost.json").read_text())
        self.queries = [target["expr"] for panel in self.dashboard["panels"] for target in panel["targets"]]
        self.queries += [variable["query"] for variable in self.dashboard["templating"]["list"]]
        self.rules = [rule for group in self.prometheus("alerts.yaml")["groups"] for rule in group["rules"]]
        self.alerts = [rule["expr"] for rule in self.rules]

    def prometheus(self, name: str) -> Any:
        return yaml.safe_load((ETC / "prometheus" / name).read_text())

    def test_every_metric_of_dashboard_and_alerts_exists(self) -> None:
        for queries in (self.queries, self.alerts):
            asked = {name for query in queries for name in METRIC.findall(query)}
            self.assertGreater(len(asked), 3)
            self.assertEqual(set(), asked - self.known)

    def test_every_alert_has_a_test_in_which_it_fires(self) -> None:
        tested = {case["alertname"] for test in self.prometheus("alerts.test.yaml")["tests"]
                  for case in test["alert_rule_test"] if case["exp_alerts"]}
        self.assertEqual({rule["alert"] for rule in self.rules}, tested)

    def test_panels_do_not_overlap(self) -> None:
        fields = [(panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y) for panel in self.dashboard["panels"]
                  for x in range(panel["gridPos"]["w"]) for y in range(panel["gridPos"]["h"])]
        self.assertEqual(len(fields), len(set(fields)))
        self.assertTrue(all(x < 24 for x, _ in fields))

    def test_prometheus_understands_rules_and_queries(self) -> None:
        if shutil.which("promtool") is None:
            self.skipTest("promtool is of Debian's package prometheus")
        for command in (("check", "rules", "alerts.yaml"), ("test", "rules", "alerts.test.yaml")):
            done = subprocess.run(["promtool", *command], cwd=ETC / "prometheus", capture_output=True, text=True,
                                  check=False)
            self.assertEqual(0, done.returncode, done.stdout + done.stderr)

    def test_prometheus_parses_the_dashboards_queries(self) -> None:
        if shutil.which("promtool") is None:
            self.skipTest("promtool is of Debian's package prometheus")
        rules = [{"record": f"query:{number}", "expr": query.replace("$__rate_interval", "5m")}
                 for number, query in enumerate(self.queries) if "label_values" not in query and query != "prometheus"]
        content = yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]})
        done = subprocess.run(["promtool", "check", "rules", "/dev/stdin"], input=content, capture_output=True,
                              text=True, check=False)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
