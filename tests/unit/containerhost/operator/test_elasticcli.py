# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import fixtures
import testtools
from click.testing import CliRunner, Result

from containerhost.elastic import metrics
from containerhost.guest import resources
from containerhost.operator.cli import main
from containerhost.operator.exporter.families import names
from tests.unit.containerhost.elastic.fakes import GiB, World

ROOT = Path(__file__).parents[4]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["elastic", *arguments])


class StatusTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.world = World(self.directory)
        self.service = self.world.service()
        self.world.engine.add("a", (1, 4), (GiB, 2 * GiB))
        self.world.rounds(self.service, 2)
        self.state = ("--state", str(self.directory / "state"))

    def test_status_is_what_the_last_round_saw(self) -> None:
        shown = json.loads(run("status", "--json", *self.state).output)
        (row,) = shown["containers"]
        self.assertEqual(("fake/a", [0, 1, 2, 3], 1, 4, 2 * GiB), tuple(row[key] for key in (
            "container", "cores", "least", "most", "memory")))
        line = run("status", *self.state).output.splitlines()[-1]
        self.assertEqual(["fake/a", "4", "0-3", "4", "1-4", "2048", "2048", "1024-2048"], line.split()[:8])

    def test_announced_change_is_shown(self) -> None:
        self.world.files.listening.add("a")
        self.world.files.acknowledge("a", resources.generation(self.world.files.document("a")))
        self.world.engine.add("b", (1, 4), (GiB, 2 * GiB))
        self.world.rounds(self.service)
        self.assertIn("announced", run("status", *self.state).output)

    def test_no_service_yet(self) -> None:
        self.assertIn("no service has divided anything", run("status", "--state", str(self.directory / "none")).output)

    def test_metrics(self) -> None:
        found = {family.name: family for family in metrics.families(self.service.seen, self.service.done)}
        cores = {sample.labels["kind"]: sample.value for sample in found["containerhost_elastic_cores"].samples}
        self.assertEqual({"least": 1, "present": 4, "wanted": 4, "most": 4}, cores)
        self.assertEqual([({"outcome": "grown"}, 1)], [(sample.labels, sample.value) for sample in
                                                       found["containerhost_elastic_changes"].samples])
        page = (ROOT / "doc/source/elastic.md").read_text()
        for name in names(found.values()):
            short = name.removeprefix("containerhost_elastic")
            self.assertTrue(f"`{name}" in page or f"`…{short}" in page, name)


class EngineTest(testtools.TestCase):
    def test_unknown_engines_and_bad_addresses_are_refused(self) -> None:
        for words, text in ((["plan", "--engine", "podman"], "'podman' is not an engine; use docker, incus, lxd"),
                            (["plan"], "--engine"), (["plan", "--engine", "lxd", "--policy", "best"], "best"),
                            (["plan", "--engine", "lxd=/no/such/socket"], "/no/such/socket")):
            done = run(*words)
            self.assertNotEqual(0, done.exit_code)
            self.assertIn(text, done.output)
