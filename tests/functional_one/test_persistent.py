# SPDX-License-Identifier: Apache-2.0
"""Persistent roots: what a VM wrote is in its disk file whenever OpenNebula may use it."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import fixtures

from containerhost.engines.contract import Status
from lxdone.disk import filesystems
from tests import levels
from tests.functional_one import diskfiles
from tests.functional_one.node import DEAF
from tests.functional_one.test_actions import (
    BOOT,
    BOOT_UNDEPLOYED,
    CLEANUP,
    POWEROFF,
    RESUME,
    SHUTDOWN,
    UNDEPLOY,
    ActionsCase,
)
from tests.functional_one.vms import ROOT, Machine
from tests.waiting import await_that

PERSISTENT = ROOT.replace("<SAVE><![CDATA[NO]]>", "<SAVE>YES")


@levels.exhaustive("each format and the life of one image stay", tests=(
    "test_a_partition_grows_with_what_is_written", "test_a_vm_that_stops_by_itself_is_off_when_its_file_is_written",
    "test_packed_image_is_no_limit_of_what_it_unpacks_to"))
class PersistentTest(ActionsCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.tree = diskfiles.tree(self.node.lxd.images["unified"], self.directory)
        self.store = self.node.datastores / "1"
        self.store.mkdir(parents=True)
        self.machine = Machine(disks=PERSISTENT)
        self.addCleanup(lambda: self.assertEqual([], diskfiles.loops(self.node.datastores)))

    def boot(self, image: Path, machine: Machine | None = None) -> Machine:
        """With an image that is linked, as the ``shared`` transfer driver does."""
        machine = machine or self.machine
        directory = self.node.datastores / "0" / str(machine.id)
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        (directory / "disk.0").symlink_to(image)
        self.ok("deploy", machine, lcm=BOOT)
        self.addCleanup(self.ok, "cancel", machine, lcm=CLEANUP)
        return machine

    def write(self, text: str) -> None:
        self.assertEqual("", self.inside(self.machine, "sh", "-c", f"echo {text} > /root/file"))

    def in_file(self, file: Path) -> str:
        return subprocess.run(["debugfs", "-R", "cat root/file", str(file)], capture_output=True, text=True,
                              check=True).stdout

    def test_a_file_system_over_its_whole_life(self) -> None:
        (self.tree / "old").mkdir()
        (self.tree / "old/file").write_text("old\n")
        file = diskfiles.ext4(self.tree, self.store / "ext4")
        status = file.stat()
        self.boot(file)
        self.inside(self.machine, "sh", "-c", "echo one > /root/file; chown 12:34 /root/file; chmod 4711 /root/file; "
                    "ln /root/file /root/same; ln -s ../nowhere /root/link; rm -r /old; mkfifo /root/fifo")
        os.setxattr(f"/proc/{self.pid(self.machine)}/root/root/file", "user.mark", b"kept")
        self.ok("shutdown", self.machine, lcm=POWEROFF)
        self.assertEqual("one\n", self.in_file(file))
        self.assertEqual((status.st_uid, status.st_mode, 256 * diskfiles.MIB),
                         (file.stat().st_uid, file.stat().st_mode, file.stat().st_size))
        self.ok("deploy", self.machine, lcm=RESUME)
        self.inside(self.machine, "sh", "-c", "echo two > /root/second")
        self.ok("shutdown", self.machine, lcm=SHUTDOWN)
        other = self.boot(file, Machine(2, disks=PERSISTENT))
        self.assertEqual("one\ntwo\n12 34 4711 2\n../nowhere\ngone\n", self.inside(
            other, "sh", "-c", "cat /root/same /root/second; stat -c '%u %g %a %h' /root/file; readlink /root/link; "
                               "ls /old >/dev/null 2>&1 || echo gone"))
        self.assertEqual(b"kept", os.getxattr(f"/proc/{self.pid(other)}/root/root/file", "user.mark"))

    def test_each_format_stays_what_it_was(self) -> None:
        ext4 = diskfiles.ext4(self.tree, self.directory / "ext4")
        base = self.store / "qcow2.snap/0"
        base.parent.mkdir()
        shutil.copy(ext4, base)
        diskfiles.qcow2("create", "-b", str(base), "-F", "raw", str(self.store / "qcow2"))
        shutil.copy(self.node.lxd.images["unified"], self.store / "lxd")
        diskfiles.partitioned(ext4, self.store / "partitioned")
        formats = ("qcow2", "lxd", "partitioned")
        for name in levels.budget(gate=(levels.turn(formats),), exhaustive=formats):
            file = self.store / name
            first = file.read_bytes()[:2]
            self.boot(file)
            self.write(name)
            self.ok("cancel", self.machine, lcm=SHUTDOWN)
            self.assertEqual(first, file.read_bytes()[:2])
            self.boot(file)
            self.assertEqual(f"{name}\n", self.inside(self.machine, "cat", "/root/file"))
            self.ok("cancel", self.machine, lcm=CLEANUP)
        self.assertEqual(ext4.read_bytes(), base.read_bytes())
        told = subprocess.check_output(["qemu-img", "info", str(self.store / "qcow2")], text=True)
        self.assertIn(f"backing file: {base}", told)

    def test_packed_image_is_no_limit_of_what_it_unpacks_to(self) -> None:
        """OpenNebula takes no SIZE for a persistent image: it says the size of the package."""
        self.node.configure("packed_root_size = 1\n")
        for name in ("unified", "squashfs"):
            persistent = name == "unified"
            disks = PERSISTENT if persistent else ROOT
            machine = self.machine.changed(disks=disks.replace(
                "<SIZE><![CDATA[256]]></SIZE>", "<SIZE>2</SIZE><ORIGINAL_SIZE>2</ORIGINAL_SIZE>"))
            file = self.store / name
            shutil.copy(self.node.lxd.images[name], file)
            self.boot(file, machine)
            for _ in range(2):  # a squashfs becomes an ext4 file system when it is written back
                self.assertEqual(str(1 << 30), self.engine.client.instance("one-1").instance["devices"]["root"]["size"])
                self.ok("cancel", machine, lcm=UNDEPLOY)
                self.ok("deploy", machine, lcm=BOOT_UNDEPLOYED)
            self.ok("cancel", machine, lcm=CLEANUP)

    def test_a_partition_grows_with_what_is_written(self) -> None:
        ext4, file = diskfiles.ext4(self.tree, self.directory / "ext4"), self.store / "partitioned"
        diskfiles.partitioned(ext4, file)
        before = filesystems.find(file)
        self.boot(file, self.machine.changed(disks=PERSISTENT.replace("256", "400")))
        self.inside(self.machine, "dd", "if=/dev/urandom", "of=/root/big", "bs=1M", "count=150")
        self.write("kept")
        self.ok("cancel", self.machine, lcm=SHUTDOWN)
        found = filesystems.find(file)
        self.assertEqual((before.start, 400 * diskfiles.MIB), (found.start, found.start + found.size))
        self.boot(file)
        self.assertEqual(("kept\n", str(150 * diskfiles.MIB)), (
            self.inside(self.machine, "cat", "/root/file"),
            self.inside(self.machine, "stat", "-c", "%s", "/root/big").strip()))

    def test_what_cannot_be_written_back_is_kept_and_tried_again(self) -> None:
        file = diskfiles.ext4(self.tree, self.store / "ext4")
        before = file.read_bytes()
        self.boot(file)
        self.write("kept")
        with self.node.stuck("tar", "echo no room >&2; exit 1"):
            self.refused("no room", "shutdown", self.machine, lcm=SHUTDOWN)
        with self.node.stuck("tar", DEAF), self.node.begun("shutdown", self.machine, lcm=SHUTDOWN) as process:
            await_that(lambda: diskfiles.loops(self.store), "the new file is mounted")
            os.killpg(process.pid, signal.SIGKILL)
        await_that(lambda: diskfiles.loops(self.store) == [], "the mount is gone")
        self.assertEqual((before, Status.STOPPED), (file.read_bytes(), self.status(self.machine)))
        self.ok("shutdown", self.machine, lcm=SHUTDOWN)
        self.assertEqual(("kept\n", ["ext4"]), (self.in_file(file), os.listdir(self.store)))

    def test_a_vm_that_stops_by_itself_is_off_when_its_file_is_written(self) -> None:
        file = diskfiles.ext4(self.tree, self.store / "ext4")
        self.boot(file)
        self.write("kept")
        self.engine.stop("one-1", timeout=20, force=True)
        await_that(lambda: 'ID="one-1", STATE="POWEROFF"' in self.node.probe("vm/status").out, "it is told to be off")
        self.assertEqual("kept\n", self.in_file(file))

    def test_one_that_cannot_be_written_is_refused(self) -> None:
        directory = self.node.datastores / "0/1"
        directory.mkdir(parents=True)
        shutil.copy(self.node.lxd.images["squashfs"], directory / "disk.0")
        self.refused("of format squashfs, which cannot be written", "deploy", self.machine, lcm=BOOT)
        self._nothing_is_left()
