# SPDX-License-Identifier: Apache-2.0
import json
import os
from pathlib import Path

import fixtures
import testtools

from containerhost.engines.contract import ContainerState, Status
from containerhost.linux.run import missing
from onedock import nodecheck
from onedock.datastore.actions import ACTIONS as DATASTORE
from onedock.install import main
from onedock.transfer.actions import ACTIONS as TRANSFER
from onedriver.node.names import LABEL
from onedriver.setup import frontend, remotes
from tests.unit.lxdone.test_install import FrontEndCase

ONED = """TM_MAD = [
    EXECUTABLE = "one_tm",
    ARGUMENTS = "-t 15 -d dummy,ssh"
]
DATASTORE_MAD = [
    EXECUTABLE = "one_datastore",
    ARGUMENTS  = "-t 15 -d dummy,fs -s shared,ssh"
]
"""


class FrontEndTest(FrontEndCase):
    command = main

    def setUp(self) -> None:
        super().setUp()
        self.oned.write_text(ONED)
        self.monitord.write_text("")

    def test_the_driver_is_in_every_list_and_out_again(self) -> None:
        self.install("--apply")
        text = self.oned.read_text()
        for part in ("-d dummy,ssh,onedock", "-d dummy,fs,onedock -s shared,ssh,onedock", "TM_MAD_CONF", "DS_MAD_CONF",
                     "VM_MAD", 'DATASTORE_ENCRYPTED_ATTR = "ONEDOCK_CREDENTIALS"'):
            self.assertIn(part, text)
        self.assertIn("IM_MAD", self.monitord.read_text())
        self.assertEqual({"files": [], "configured": [], "by_hand": {},
                          "warnings": [frontend.EXEC_WARNING.format(path=self.oned)]},
                         json.loads(self.install("--apply", "--json")))
        self.install("--apply", "--uninstall")
        self.assertEqual((ONED, ""), (self.oned.read_text(), self.monitord.read_text()))
        self.assertEqual([], list(self.remotes.iterdir()))

    def test_by_hand_it_says_all(self) -> None:
        out = self.install()
        self.assertIn("# …and onedock to the list -s in ARGUMENTS of DATASTORE_MAD", out)
        self.assertEqual(ONED, self.oned.read_text())

    def test_a_front_end_without_such_lists_stays_as_it_is(self) -> None:
        self.oned.write_text("")
        self.assertIn("DATASTORE_MAD", self.install("--apply", status=1))
        self.assertEqual((0, ""), (len(list(self.remotes.iterdir())), self.oned.read_text()))

    def test_each_driver_has_its_own_scripts(self) -> None:
        self.install()
        for kind, actions in (("datastore", {*DATASTORE}), ("tm", {*TRANSFER, "monitor", "monitor_ds"})):
            directory = self.remotes / kind / "onedock"
            self.assertEqual(actions, set(os.listdir(directory)))
            self.assertEqual([], [path for path in directory.iterdir() if not os.access(path, os.X_OK)])
        self.assertEqual(set(), set(remotes.files("onedock")) & set(remotes.files("lxdone")))
        self.assertEqual({"onedock"}, {path.name for path in (self.remotes / "vmm").iterdir()})


class NodeTest(testtools.TestCase):
    def test_an_engine_in_order(self) -> None:
        self.assertEqual([], list(nodecheck.of_engine({"ServerVersion": "20.10.24+dfsg1",
                                                       "Runtimes": {"runc": {}, "containerhost": {}}})))

    def test_what_is_wrong_with_one(self) -> None:
        found = list(nodecheck.of_engine({"ServerVersion": "19.03.1", "Runtimes": {"runc": {}},
                                          "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]}))
        self.assertEqual(["19.03.1", "daemon.json", "containerd-snapshotter"],
                         [word for word, complaint in zip(("19.03.1", "daemon.json", "containerd-snapshotter"), found,
                                                          strict=True) if word in complaint])

    def test_containers_whose_vms_opennebula_removed_are_named_with_the_remedy(self) -> None:
        datastores = Path(self.useFixture(fixtures.TempDir()).path)
        (datastores / "105/7").mkdir(parents=True)
        found = [ContainerState(f"one-{number}", Status.RUNNING, labels={LABEL: number} if number != "9" else {})
                 for number in ("7", "8", "9")]
        (complaint,) = nodecheck.orphans(found, datastores)
        for words in ("`onedock drop 8` if `onevm show 8`", "container one-8 is running"):
            self.assertIn(words, complaint)

    def test_programs_that_are_missing(self) -> None:
        (complaint,) = missing(("sh", "no-such-program"))
        self.assertIn("no-such-program", complaint)
