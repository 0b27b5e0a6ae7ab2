# SPDX-License-Identifier: Apache-2.0
"""Test the front-end's part of live copies, called by stand-ins of OpenNebula's scripts.

``onevm``, ``ssh`` and the node's ``lxdone`` are stand-ins too; the node is this machine."""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import fixtures
import testtools

from lxdone import livecopy
from onedriver.errors import DriverError
from onedriver.setup import remotes, transferdrivers
from tests import levels
from tests.commands import script
from tests.unit.onedriver.test_disk_paths import METACHARACTERS

ROOT = Path(__file__).parents[3]
ORIGINAL = '#!/bin/bash\necho "original ${0##*/}"\n'
VM = ("<VM><ID>1</ID><NAME>vm</NAME><LCM_STATE>{lcm}</LCM_STATE><DEPLOY_ID>one-1</DEPLOY_ID><TEMPLATE>"
      "<MEMORY>64</MEMORY><DISK><DISK_ID>0</DISK_ID><TYPE>FILE</TYPE><FORMAT>raw</FORMAT><SOURCE>/images/root</SOURCE><TM_MAD>ssh</TM_MAD>"
      "<CLONE>YES</CLONE></DISK><DISK><DISK_ID>1</DISK_ID><TYPE>FILE</TYPE><FORMAT>{format}</FORMAT><SOURCE>{source}"
      "</SOURCE><TM_MAD>{tm}</TM_MAD><CLONE>{clone}</CLONE></DISK></TEMPLATE><HISTORY_RECORDS><HISTORY><SEQ>0</SEQ>"
      "<VM_MAD>kvm</VM_MAD></HISTORY><HISTORY><SEQ>1</SEQ><VM_MAD>{driver}</VM_MAD><DS_ID>0</DS_ID></HISTORY>"
      "</HISTORY_RECORDS></VM>")
SSH = """
while [ "$1" != -- ]; do shift; done
if [ "$2" != node1 ]; then echo "ssh: Could not resolve hostname $2" >&2; exit 255; fi
exec sh -c "$3" ssh"""
# On the front-end it is the driver, on the node a stand-in that copies the disk as it is.
LXDONE = """if [ "$1 $2" = "vmm copy_disk" ]; then
    cat > {base}/given
    if [ -e {base}/failure ]; then cat {base}/failure >&2; exit 1; fi
    cp {directory}/disk.$4 {directory}/lxdone.copy.$4 && echo {directory}/lxdone.copy.$4
    exit
fi
PYTHONPATH={root} exec {python} -m lxdone"""


class HangingNodeTest(testtools.TestCase):
    def test_an_ssh_that_does_not_end_keeps_nobody_waiting(self) -> None:
        request = livecopy.Request("cpds", ["node1:/datastores/0/1/disk.1"], b"<VM/>", mock.Mock(id=1))
        self.useFixture(fixtures.MockPatchObject(livecopy, "LAST_WORDS_TIMEOUT", 0.2))
        self.useFixture(fixtures.MockPatchObject(livecopy, "on_node", return_value=[
            "sh", "-c", "trap '' TERM; exec >&-; sleep 9 & wait"]))
        began = time.monotonic()
        self.assertRaises(DriverError, livecopy.receive, request, Path(self.useFixture(fixtures.TempDir()).path))
        self.assertLess(time.monotonic() - began, 5)


class LiveCopyTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.base = Path(self.useFixture(fixtures.TempDir()).path)
        self.directory, self.images = self.base / "node1/0/1", self.base / "images"
        for path in (self.directory, self.images, self.base / "bin"):
            path.mkdir(parents=True)
        (self.directory / "disk.1").write_text("now")
        self.command("lxdone", LXDONE.format(base=self.base, directory=self.directory, root=ROOT,
                                             python=sys.executable))
        self.command("ssh", SSH)
        self.command("sudo", 'shift; exec "$@";')
        self.describe()
        self.remotes = self.base / "remotes"
        for name in ("cpds", "cpds.ssh", "prebackup_live", "snap_create_live", "snap_create_live.ssh"):
            file = self.remotes / "tm/ssh" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(ORIGINAL)
            file.chmod(0o755)
        remotes.install(self.remotes, "lxdone")
        transferdrivers.install(self.remotes, "lxdone", ("ssh",))

    def command(self, name: str, text: str) -> None:
        script(self.base / "bin" / name, text)

    def describe(self, lcm: int = 26, driver: str = "lxdone", format: str = "raw", tm: str = "ssh", clone: str = "YES",
                 source: str = "/images/data") -> None:
        xml = VM.format(lcm=lcm, driver=driver, format=format, tm=tm, clone=clone, source=source)
        self.command("onevm", f'[ "$*" = "show --xml 1" ] || exit 1; echo {shlex.quote(xml)}; exit;')

    def call(self, name: str, *arguments: str) -> tuple[int, str, str]:
        done = subprocess.run([self.remotes / "tm/ssh" / name, *arguments], capture_output=True, text=True, check=False,
                              env={"PATH": f"{self.base}/bin:{os.defpath}"}, stdin=subprocess.DEVNULL)
        return done.returncode, done.stdout, done.stderr

    def place(self, disk: str = "disk.1", host: str = "node1") -> str:
        return f"{host}:{self.directory.parents[1]}//0/1/{disk}"

    def saved(self, name: str = "cpds", place: str = "", number: str = "-1") -> tuple[int, str, str]:
        return self.call(name, place or self.place(), str(self.images / "new"), number, "1", "101")

    def taken(self, number: str = "3") -> tuple[int, str, str]:
        return self.call("snap_create_live", self.place(), number, "1", "101")

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.base)) for directory in (self.directory, self.images)
                      for path in directory.rglob("*") if path.is_file())

    def test_disk_becomes_an_image(self) -> None:
        for name in ("cpds", "cpds.ssh"):
            self.assertEqual((0, "", ""), self.saved(name))
            self.assertEqual("now", (self.images / "new").read_text())
            (self.directory / "disk.1").write_text("now")
        self.assertEqual(["images/new", "node1/0/1/disk.1"], self.files())
        given = (self.base / "given").read_text()
        self.assertIn("<VM_MAD>lxdone", given)
        self.assertEqual("<VM>", given[:4])  # from its beginning

    def test_holes_of_a_disk_stay_holes(self) -> None:
        os.truncate(self.directory / "disk.1", 64 << 20)
        self.assertEqual((0, "", ""), self.saved())
        found = (self.images / "new").stat()
        self.assertEqual((64 << 20, True), (found.st_size, found.st_blocks * 512 < 1 << 20))

    def test_disk_has_a_snapshot(self) -> None:
        self.describe(lcm=57)
        self.assertEqual((0, "", ""), self.taken())
        (self.directory / "disk.1").write_text("later")
        self.assertEqual((0, "", ""), self.taken("4"))
        self.assertEqual(("now", "later"), tuple((self.directory / "disk.1.snap" / n).read_text() for n in ("3", "4")))
        self.assertEqual(3, len(self.files()))

    def test_snapshots_of_a_linked_image_are_beside_the_image(self) -> None:
        for tm in ("shared", "qcow2"):
            self.describe(57, tm=tm, clone="NO", source=str(self.images / tm))
            self.assertEqual((0, "", ""), self.taken())
        self.assertEqual(["images/qcow2.snap/3", "images/shared.snap/3", "node1/0/1/disk.1"], self.files())

    def test_snapshots_on_a_node_of_its_own_are_beside_the_disk(self) -> None:
        """OpenNebula's scripts for such nodes look for them there, and a revert removes the disk before it looks."""
        self.describe(57, tm="qcow2", clone="NO", source=str(self.images / "qcow2"))
        self.assertEqual((0, "", ""), self.call("snap_create_live.ssh", self.place(), "3", "1", "101"))
        self.assertEqual(["node1/0/1/disk.1", "node1/0/1/disk.1.snap/3"], self.files())

    def test_link_that_a_node_sends_becomes_no_image(self) -> None:
        secret = self.base / "secret"
        secret.write_text("secret")
        self.command("ssh", f"cd {self.images}; ln -s {secret} copy; tar -cf - copy; rm copy; true")
        self.assertEqual(1, self.saved()[0])
        self.assertEqual([], [path for path in self.images.rglob("*")])

    def test_qcow2_disk_has_no_live_snapshot_but_can_be_saved(self) -> None:
        self.describe(format="qcow2")
        status, out, err = self.taken()
        self.assertEqual((1, ""), (status, out))
        self.assertIn("power the VM off for a snapshot of a qcow2 disk", err)
        self.assertEqual((0, "", ""), self.saved())

    @levels.exhaustive("a copy, and what is refused, stay")
    def test_everything_else_goes_its_usual_way(self) -> None:
        for values in ({"driver": "kvm"}, {"driver": "lxc"}, {"driver": ""}, {"lcm": 27}, {"lcm": 3}):
            self.describe(**values)  # type: ignore[arg-type]
            self.assertEqual((0, "original cpds\n", ""), self.saved(), values)
        self.describe()
        self.assertEqual((0, "original cpds\n", ""), self.saved(number="0"))
        self.assertEqual((0, "original cpds\n", ""), self.call("cpds", "x"))
        for words in METACHARACTERS:
            self.assertEqual((0, "original cpds\n", ""), self.call("cpds", self.place(), "/x", "-1", words, "101"))
        self.describe(driver="kvm", lcm=57)
        self.assertEqual((0, "original snap_create_live\n", ""), self.taken())

    @levels.exhaustive("a copy, and what is refused, stay")
    def test_script_goes_on_where_opennebula_does_not_answer(self) -> None:
        for text in ("exit 1;", "echo '<VM>'; exit;", "echo; exit;", "kill -9 $$;", "echo '<VM/>'; exit;"):
            self.command("onevm", text)
            self.assertEqual((0, "original cpds\n", ""), self.saved(), text)
        for name in ("onevm", "lxdone"):
            (self.base / "bin" / name).unlink()
            self.assertEqual((0, "original cpds\n", ""), self.saved())

    def test_failure_on_the_node_is_told_and_leaves_nothing(self) -> None:
        (self.images / "new").write_text("before")
        (self.base / "failure").write_text("INFO: for the log\ncopy_disk: No space left on device: disk.1.\n")
        for status, out, err in (self.saved(), self.taken()):
            self.assertEqual((1, ""), (status, out))
            self.assertIn("node1: copy_disk: No space left on device: disk.1.", err)
            self.assertNotIn("for the log", err)
        status, _, err = self.saved(place=self.place(host="node9"))
        self.assertEqual(1, status)
        self.assertIn("node9 cannot be reached over ssh", err)
        self.assertEqual(["images/new", "node1/0/1/disk.1"], self.files())
        self.assertEqual("before", (self.images / "new").read_text())

    def test_what_cannot_be_received_or_put_there_leaves_nothing(self) -> None:
        self.command("tar", 'case "$*" in *--extract*) echo "No space left" >&2; exit 2;; esac; exec /bin/tar')
        status, _, err = self.saved()
        self.assertEqual(1, status)
        self.assertIn("No space left", err)
        self.command("mv", 'case "$*" in */.3) echo "mv: No space left" >&2; echo part > "$4"; exit 1;; esac; /bin/mv')
        status, _, err = self.taken()
        self.assertEqual(1, status)
        self.assertIn("No space left", err)
        self.assertEqual(["node1/0/1/disk.1"], self.files())

    def test_what_is_no_disk_of_the_vm_is_refused(self) -> None:
        for place in (self.place("disk.7"), self.place("disk.1/../../../../../etc/passwd"), self.place("disk.$(id)"),
                      f"-oProxyCommand=id:{self.directory}/disk.1", self.place().replace("/0/1/", "/0/2/")):
            status, out, err = self.saved(place=place)
            self.assertEqual((1, ""), (status, out), place)
            self.assertNotIn("Traceback", err)
        self.assertEqual(["node1/0/1/disk.1"], self.files())

    def test_backup_of_a_running_vm_is_refused_with_what_to_do(self) -> None:
        arguments = (f"node1:{self.base}//node1/0/1", "0:1:", "one-1", "-1", "1", "100")
        status, _, said = self.call("prebackup_live", *arguments)
        self.assertEqual(1, status)
        self.assertIn("power the VM off for its backup", said)
        self.describe(driver="kvm")
        self.assertEqual((0, "original prebackup_live\n", ""), self.call("prebackup_live", *arguments))
