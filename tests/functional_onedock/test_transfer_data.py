# SPDX-License-Identifier: Apache-2.0
"""Disks of data from a datastore to a VM and back, by the installed scripts, on a real dockerd."""

import hashlib
import os
import signal
import subprocess
import time
from pathlib import Path

from tests.functional_one.vms import ROOT, Machine
from tests.functional_onedock.base import BOOT, CLEANUP, POWEROFF, RESTORE, RESUME, SHUTDOWN, SUSPEND
from tests.functional_onedock.test_parts import disk, may_grow
from tests.functional_onedock.transfercase import TransferCase
from tests.waiting import await_that

DATA = ("<DISK><DISK_ID>1</DISK_ID><TYPE>FILE</TYPE><FORMAT>raw</FORMAT><READONLY>NO</READONLY><SAVE>YES</SAVE>"
        "<SIZE>8</SIZE><TARGET>sdb</TARGET></DISK><DISK><DISK_ID>2</DISK_ID><TYPE>fs</TYPE><FORMAT>raw</FORMAT>"
        "<SIZE>8</SIZE><TARGET>sdc</TARGET></DISK>")


class DataTest(TransferCase):
    def block(self) -> str:
        source = self.did(self.front.ds("mkfs", {"TYPE": "2", "SIZE": "8", "FS": "ext4"}))
        self.addCleanup(lambda: self.did(self.front.ds("rm", {"SOURCE": source})))
        self.addCleanup(lambda: self.did(self.front.tm("delete", self.front.place(""))))
        return source

    def test_a_vm_with_disks_of_data(self) -> None:
        kept = self.block()
        machine = Machine(disks=Machine().disks + DATA)
        self.cloned(self.registered(self.fresh()), machine)
        self.did(self.front.tm("ln", f"front-end:{kept}", self.front.place("disk.1")))
        self.did(self.front.tm("mkimage", 8, "raw", self.front.place("disk.2")))
        for name in ("disk.1", "disk.2"):  # not for every user of the node
            self.assertEqual(0, self.file(machine, name).stat().st_mode & 0o007)
        self.ok("deploy", machine, lcm=BOOT)
        for number in (1, 2):
            self.assertEqual("", self.shell(machine, f"echo hello > /media/{number}/hello"))
        self.ok("shutdown", machine, lcm=SHUTDOWN)
        self.did(self.front.tm("mvds", self.front.place("disk.1"), kept))
        found = subprocess.run(["debugfs", "-R", "cat /hello", kept], capture_output=True, text=True, check=True)
        self.assertEqual("hello\n", found.stdout)

    def with_volatile(self) -> Machine:
        """A running VM with a file on a volatile disk of 8 MiB, which is disk 2."""
        machine = Machine(disks=ROOT + disk(2))
        self.cloned(self.registered(self.fresh()), machine)
        self.did(self.front.tm("mkimage", 8, "raw", self.front.place("disk.2")))
        self.ok("deploy", machine, lcm=BOOT)
        self.addCleanup(self.ok, "cancel", machine, lcm=CLEANUP)
        self.shell(machine, "head -c 3000000 /dev/urandom > /media/2/content")
        return machine

    def checksum(self, machine: Machine) -> str:
        return self.shell(machine, "sha256sum < /media/2/content")

    def require_clean(self, path: Path) -> None:
        done = subprocess.run(["e2fsck", "-f", "-n", path], capture_output=True, text=True, check=False)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        told = subprocess.run(["dumpe2fs", "-h", path], capture_output=True, text=True, check=True).stdout
        self.assertNotIn("needs_recovery", told)  # as of one that is copied while it is mounted

    def test_resize_of_a_running_vm_touches_no_mounted_file_system(self) -> None:
        machine, place, path = self.with_volatile(), self.front.place("disk.2"), self.file(Machine(), "disk.2")
        before = self.checksum(machine)
        self.shell(machine, "for n in $(seq 200); do echo $n > /media/2/$n; done")
        self.did(self.front.tm("resize", place, 32))
        self.assertEqual(8 << 20, path.stat().st_size)
        self.failed("cannot become smaller", self.front.tm("resize", place, 4))
        self.ok("save", machine, lcm=SUSPEND)
        self.did(self.front.tm("resize", place, 32))
        self.ok("restore", machine, lcm=RESTORE)
        grown = machine.changed(disks=ROOT + disk(2).replace("<SIZE>8", "<SIZE>32"))
        if may_grow():
            self.ok("resize_disk", grown, "2", "32", "message", "node1")
        else:
            self.refused("CAP_SYS_RESOURCE", "resize_disk", grown, "2", "32", "message", "node1")
            self.assertEqual(8 << 20, path.stat().st_size)
        self.assertEqual(before, self.checksum(machine))
        self.assertEqual("200\n", self.inside(machine, "cat", "/media/2/200"))
        self.ok("shutdown", machine, lcm=POWEROFF)
        self.did(self.front.tm("resize", place, 64))
        self.require_clean(path)
        self.ok("deploy", machine, lcm=RESUME)
        self.assertEqual(before, self.checksum(machine))
        self.assertGreater(int(self.shell(machine, "df -k /media/2 | tail -1 | awk '{print $2}'")), 40_000)

    def test_resize_of_the_root_changes_nothing(self) -> None:
        machine, path = self.with_volatile(), self.file(Machine(), "disk.0")
        before = path.read_bytes()
        for _ in range(2):
            self.failed("whose size Docker fixes", self.front.tm("resize", self.front.place(), 512))
            self.assertEqual(before, path.read_bytes())
            self.ok("shutdown", machine, lcm=POWEROFF)
        self.ok("deploy", machine, lcm=RESUME)

    def test_a_disk_reverted_while_its_vm_is_off_is_what_the_vm_has_afterwards(self) -> None:
        machine, place = self.with_volatile(), self.front.place("disk.2")
        before = self.checksum(machine)
        self.failed("power the VM off", self.front.tm("snap_create", place, 0))
        self.ok("shutdown", machine, lcm=POWEROFF)
        self.did(self.front.tm("snap_create", place, 0))
        self.require_clean(self.file(machine, "disk.2.snap/0"))
        self.ok("deploy", machine, lcm=RESUME)
        self.shell(machine, "echo other > /media/2/content")
        self.ok("shutdown", machine, lcm=POWEROFF)
        self.did(self.front.tm("snap_revert", place, 0))
        self.ok("deploy", machine, lcm=RESUME)
        self.assertEqual(before, self.checksum(machine))
        self.failed("no disk snapshots", self.front.tm("snap_create", self.front.place(), 0))

    def busy(self, machine: Machine) -> None:
        """Let two processes of the container write to the disk without a pause, one of them many small files."""
        for script in ("while :; do head -c 100000 /dev/urandom > /media/2/busy; done",
                       "while :; do for n in $(seq 50); do echo > /media/2/small$n; rm /media/2/small$n; done; done"):
            self.shell(machine, f"({script}) > /dev/null 2>&1 &")
        await_that(lambda: self.is_written(machine), "it is written to")

    def is_written(self, machine: Machine) -> bool:
        before = self.shell(machine, "stat -c %y%i /media/2/busy")
        time.sleep(0.3)
        return before != self.shell(machine, "stat -c %y%i /media/2/busy")

    def in_image(self, path: Path | str) -> str:
        found = subprocess.run(["debugfs", "-R", "cat /content", path], capture_output=True, check=True)
        return f"{hashlib.sha256(found.stdout).hexdigest()}  -\n"

    def test_disk_of_a_running_vm_is_copied_as_it_is_at_one_moment(self) -> None:
        machine, place = self.with_volatile(), self.front.place("disk.2")
        before, target = self.checksum(machine), self.block()
        self.busy(machine)
        for number in (0, 1):
            self.did(self.front.tm("snap_create_live", place, number))
            path = self.file(machine, f"disk.2.snap/{number}")
            self.require_clean(path)
            self.assertEqual((before, 0), (self.in_image(path), path.stat().st_mode & 0o007))
        self.did(self.front.tm("cpds", place, target, "raw", "-1"))
        self.require_clean(Path(target))
        self.assertEqual(before, self.in_image(target))
        await_that(lambda: self.is_written(machine), "it is written to again")
        self.assertEqual(["disk.0", "disk.2", "disk.2.snap"], sorted(os.listdir(self.file(machine, ""))))
        self.failed("no disk snapshots", self.front.tm("snap_create_live", self.front.place(), 0))
        self.shell(machine, "echo other > /media/2/content")
        self.ok("shutdown", machine, lcm=POWEROFF)
        self.did(self.front.tm("snap_revert", place, 0))
        self.ok("deploy", machine, lcm=RESUME)
        self.assertEqual(before, self.checksum(machine))

    def test_nothing_stays_frozen_when_a_copy_is_killed_or_fails(self) -> None:
        machine, place = self.with_volatile(), self.front.place("disk.2")
        self.busy(machine)
        with self.node.stuck("cp", f"touch {self.front.files}/begun; exec sleep 600"):
            words = [self.front.scripts / "tm/onedock/snap_create_live", place, "0", "1", "101"]
            with subprocess.Popen(words, env=self.node.environment, stdin=subprocess.DEVNULL,
                                  start_new_session=True) as process:
                await_that((self.front.files / "begun").exists, "the disk is copied")
                self.assertFalse(self.is_written(machine))
                os.killpg(process.pid, signal.SIGKILL)
        await_that(lambda: self.is_written(machine), "it is thawed")
        snapshots = self.file(machine, "disk.2.snap")
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", snapshots], check=True)
        try:
            self.failed("No space left", self.front.tm("snap_create_live", place, 0))
            self.assertEqual([], os.listdir(snapshots))
        finally:
            subprocess.run(["umount", snapshots], check=True)
        await_that(lambda: self.is_written(machine), "it is thawed")
        self.did(self.front.tm("snap_create_live", place, 0))
        self.require_clean(self.file(machine, "disk.2.snap/0"))

    def test_a_disk_that_something_else_uses_is_not_resized(self) -> None:
        machine, path = self.with_volatile(), self.file(Machine(), "disk.2")
        self.ok("shutdown", machine, lcm=POWEROFF)
        self.did(self.front.tm("resize", self.front.place("disk.2"), 9))
        loop = subprocess.run(["losetup", "--find", "--show", path], check=True, capture_output=True,
                              text=True).stdout.strip()
        try:
            self.failed(loop, self.front.tm("resize", self.front.place("disk.2"), 16))
        finally:
            subprocess.run(["losetup", "--detach", loop], check=True)
        self.assertEqual(9 << 20, path.stat().st_size)

    def test_a_disk_that_is_full(self) -> None:
        full = self.node.base / "node2"
        full.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", full], check=True)
        self.addCleanup(subprocess.run, ["umount", full], check=True)
        source = self.block()
        with Path(source).open("rb+") as file:
            file.seek(1 << 20)
            file.write(os.urandom(2 << 20))
        self.failed("No space left", self.front.tm("clone", f"front-end:{source}", self.front.place("disk.1", "node2")))
        self.assertEqual([], [path for path in full.rglob("*") if path.is_file() and path.name != ".monitor"])
