# SPDX-License-Identifier: Apache-2.0
import json

import testtools
from click.testing import CliRunner, Result

from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.inventory.scan import scan
from containerhost.operator.cli import main
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
