# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import fixtures
import testtools

from lxdone.disk import ceph
from onedriver.errors import BadInput, NotSupported
from tests.unit.lxdone.machines import machine


class CephTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        bin_directory = Path(self.useFixture(fixtures.TempDir()).path)
        (bin_directory / "rbd").write_text("")
        (bin_directory / "rbd").chmod(0o755)
        self.useFixture(fixtures.EnvironmentVariable("PATH", str(bin_directory)))

    def name(self, source: str, more: str = "") -> str:
        vm = machine(("<TYPE><![CDATA[fs]]></TYPE>", f"<TYPE>RBD</TYPE><SOURCE>{source}</SOURCE>{more}"))
        return ceph.image(vm.id, vm.disks[1])

    def test_a_clone_is_called_after_vm_and_disk_and_a_persistent_image_is_itself(self) -> None:
        self.assertEqual("one/one-5-1-1", self.name("one/one-5"))
        self.assertEqual("one/one-5", self.name("one/one-5", "<SAVE>YES</SAVE><CLONE>NO</CLONE>"))

    def test_what_is_no_name_never_reaches_a_command(self) -> None:
        for source in ("one", "--x/y", "one/--x", "a/b/c", "a/b@c", "a b/c"):
            self.assertRaises(BadInput, self.name, source)
        self.assertRaises(BadInput, self.name, "one/one-5", "<CEPH_USER>--conf=x</CEPH_USER>")
        self.assertRaises(BadInput, self.name, "")

    def test_a_node_without_rbd(self) -> None:
        self.useFixture(fixtures.EnvironmentVariable("PATH", "/nonexistent"))
        self.assertRaises(NotSupported, self.name, "one/one-5")
