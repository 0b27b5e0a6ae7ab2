# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import fixtures
import testtools
from click.testing import CliRunner, Result

from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.errors import DeviceNotFound
from containerhost.inventory.scan import scan
from containerhost.operator.cli import main
from containerhost.operator.vfs.provisioner import OPERATOR, Provisioner
from tests.unit.containerhost.hosts import Broken


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["vfs", *arguments])


class ShowTest(testtools.TestCase):
    def test_cards_and_what_is_in_use(self) -> None:
        tree = self.useFixture(Broken("mixed"))
        inventory = scan(tree.host)
        AllocationStore(tree.root / "records").claim([inventory.get("0000:5e:00.2")],
                                                     Consumer("nova", "lxd", "one", "1"), inventory.related)
        where = ("--root", str(tree.root), "--owners", str(tree.root / "records"))
        rows = {row["card"]: row for row in json.loads(run("show", "--json", *where).output)}
        self.assertEqual({"0000:31:00.0", "0000:5e:00.0", "0000:d8:00.0", "0000:d8:00.1"}, set(rows))
        self.assertEqual((8, 4, ["0000:5e:00.2"]), (rows["0000:5e:00.0"]["most"], rows["0000:5e:00.0"]["functions"],
                                                    rows["0000:5e:00.0"]["in_use"]))
        line = next(line for line in run("show", *where).output.splitlines() if line.startswith("0000:5e:00.0"))
        self.assertEqual(["0000:5e:00.0", "ibs1", "infiniband", "4", "8", "0000:5e:00.2"], line.split())


    def test_environment_names_the_records(self) -> None:
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        (directory / "0000:3b:00.0.json").write_text("{")
        self.useFixture(fixtures.EnvironmentVariable("CONTAINERHOST_OWNERS", str(directory)))
        self.assertIn(f"{directory}/0000:3b:00.0.json cannot be trusted", run().output)


class ApplyTest(testtools.TestCase):
    def test_after_a_kill_a_file_that_is_refused_ends_the_claim(self) -> None:
        tree = self.useFixture(Broken("mixed"))
        store, inventory = AllocationStore(tree.root / "records"), scan(tree.host)
        store.claim([inventory.get("0000:d8:00.1")], OPERATOR, inventory.related)
        provisioner = Provisioner(tree.root / "records", lambda: inventory)
        self.assertRaises(DeviceNotFound, provisioner.apply, {"0000:99:00.0": 1})
        self.assertEqual({}, store.records())
