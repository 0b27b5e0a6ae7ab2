# SPDX-License-Identifier: Apache-2.0
"""Disks of a VM that runs become snapshots and images, through OpenNebula's transfer drivers, on the real LXD."""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import fixtures

from containerhost.engines.contract import Status
from onedriver.setup import transferdrivers
from tests import frozengroups, levels
from tests.commands import script
from tests.functional_one import diskfiles
from tests.functional_one.node import Result
from tests.functional_one.test_actions import BOOT, CLEANUP, POWEROFF, RESTORE, RESUME, SUSPEND, ActionsCase
from tests.functional_one.test_datastore_owner import ONEADMIN
from tests.functional_one.test_disks import volatile
from tests.functional_one.vms import ROOT, Machine
from tests.waiting import await_that

SAVEAS, SNAPSHOT = 26, 57
SSH = """
while [ "$1" != -- ]; do shift; done
exec sh -c "$3" ssh"""
IMAGE = ("<DISK><DISK_ID>1</DISK_ID><TYPE>FILE</TYPE><FORMAT>{format}</FORMAT><READONLY>{read_only}</READONLY><SAVE>NO"
         "</SAVE><SIZE>32</SIZE><TARGET>sdb</TARGET></DISK>")


@levels.exhaustive("copies of a root, and a kill stay; functional_onedock has the same of a disk", tests=(
    "test_datastore_of_another_user", "test_full_datastore_is_told_and_leaves_nothing",
    "test_qcow2_disk_is_saved_as_an_image_that_stands_by_itself", "test_read_only_disk_is_copied",
    "test_nothing_stays_frozen_when_a_copy_is_killed",
    "test_disk_is_copied_as_it_is_at_one_moment"))
class LiveCopiesTest(ActionsCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = self.node.datastores / "0/1"
        self.images = Path(self.useFixture(fixtures.TempDir()).path)
        for name in ("cpds", "snap_create_live"):
            file = self.node.remotes / "tm/ssh" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("#!/bin/bash\necho original\nexit 1\n")
            file.chmod(0o755)
        transferdrivers.install(self.node.remotes, "lxdone", ("ssh",))
        self.bin = Path(shutil.which("lxdone", path=self.node.environment["PATH"]) or "").parent
        script(self.bin / "ssh", SSH)
        self.addCleanup(lambda: self.assertEqual([], diskfiles.loops(self.node.datastores)))

    def describe(self, machine: Machine, lcm: int) -> None:
        xml = machine.vm(lcm, machine.name).replace("<HOSTNAME>", "<VM_MAD>lxdone</VM_MAD><HOSTNAME>")
        script(self.bin / "onevm", f"echo {shlex.quote(xml)}; exit;")

    def words(self, machine: Machine, name: str, disk: int, *arguments: str) -> list[str]:
        return [str(self.node.remotes / "tm/ssh" / name), f"node1:{self.node.datastores}//0/1/disk.{disk}", *arguments,
                str(machine.id), "101"]

    def tm(self, machine: Machine, name: str, disk: int, *arguments: str) -> Result:
        self.describe(machine, SAVEAS if name == "cpds" else SNAPSHOT)
        return self.node.command(f"{shlex.join(self.words(machine, name, disk, *arguments))} < /dev/null")

    def did(self, result: Result) -> None:
        self.assertEqual((0, "", ""), (result.status, result.out, result.reason), result.err)

    def failed(self, words: str, result: Result) -> None:
        self.assertEqual((1, ""), (result.status, result.out), result.err)
        self.assertIn(words, result.reason)
        self.assertNotIn("mistake", result.reason)

    def snapshot(self, machine: Machine, disk: int, number: int = 0) -> Path:
        self.did(self.tm(machine, "snap_create_live", disk, str(number)))
        return self.directory / f"disk.{disk}.snap/{number}"

    def image(self, machine: Machine, disk: int) -> Path:
        self.did(self.tm(machine, "cpds", disk, str(self.images / "new"), "-1"))
        return self.images / "new"

    def require_clean(self, file: Path) -> None:
        done = subprocess.run(["e2fsck", "-f", "-n", file], capture_output=True, text=True, check=False)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        told = subprocess.run(["dumpe2fs", "-h", file], capture_output=True, text=True, check=True).stdout
        self.assertNotIn("needs_recovery", told)  # as of one that is copied while it is mounted

    @contextlib.contextmanager
    def busy(self, machine: Machine, directory: str = "/media/1") -> Iterator[Path]:
        """Let processes in the container's control group write without a pause: files that grow, come and go.

        :returns: a file that grows until the end of the block
        """
        loops = (f"while :; do echo x >> {directory}/busy; done",
                 f"while :; do for n in $(seq 50); do echo > {directory}/small$n; rm {directory}/small$n; done; done")
        pid = str(self.pid(machine))
        join = "".join(f"echo $$ > {shlex.quote(str(group))}/cgroup.procs && " for group in frozengroups.of(int(pid)))
        with contextlib.ExitStack() as stack:
            for loop in loops:
                process = stack.enter_context(subprocess.Popen(
                    ["sh", "-c", f'{join}exec nsenter "$@"', "sh", "--target", pid, "--all", "sh", "-c", loop],
                    env={"PATH": "/bin:/usr/bin"}, stderr=subprocess.DEVNULL, start_new_session=True))
                stack.callback(os.killpg, process.pid, signal.SIGKILL)
            await_that(lambda: self.is_written(machine, directory), "it is written to")
            yield Path(f"/proc/{self.pid(machine)}/root{directory}/busy")

    def is_written(self, machine: Machine, directory: str = "/media/1") -> bool:
        file = Path(f"/proc/{self.pid(machine)}/root{directory}/busy")
        before = file.stat().st_size if file.exists() else 0
        time.sleep(0.5)
        return file.exists() and file.stat().st_size > before

    def left(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir() if path.suffix != ".snap")

    def test_root_is_copied_with_what_it_has_now_and_reverted(self) -> None:
        tree = diskfiles.tree(self.node.lxd.images["unified"], self.images)
        machine = Machine()
        self.node.give_disk(machine, diskfiles.ext4(tree, self.images / "ext4"))
        self.ok("deploy", machine, lcm=BOOT)
        self.addCleanup(self.ok, "cancel", machine, lcm=CLEANUP)
        self.inside(machine, "sh", "-c", "echo then > /root/file")
        before, pid = self.left(), self.pid(machine)
        with self.busy(machine, "/root"):
            snapshot, saved = self.snapshot(machine, 0), self.image(machine, 0)
        for file in (snapshot, saved):
            self.assertEqual("then\n", diskfiles.in_ext(file, "root/file"))
            self.require_clean(file)
        self.assertEqual((before, pid, Status.RUNNING), (self.left(), self.pid(machine), self.status(machine)))
        self.inside(machine, "sh", "-c", "echo now > /root/file")
        self.ok("shutdown", machine, lcm=POWEROFF)
        self.ok("deploy", machine, lcm=RESUME)
        self.assertEqual("now\n", self.inside(machine, "cat", "/root/file"))
        self.ok("shutdown", machine, lcm=POWEROFF)
        disk = self.directory / "disk.0"
        disk.unlink()  # as OpenNebula's snap_revert
        shutil.copyfile(snapshot, disk)
        self.ok("deploy", machine, lcm=RESUME)
        self.assertEqual("then\n", self.inside(machine, "cat", "/root/file"))

    def test_root_that_is_an_archive_stays_one(self) -> None:
        machine = self.deployed()
        self.inside(machine, "sh", "-c", "echo then > /root/file")
        saved = self.image(machine, 0)
        other = Machine(2)
        self.node.give_disk(other, saved)
        self.ok("deploy", other, lcm=BOOT)
        self.addCleanup(self.ok, "cancel", other, lcm=CLEANUP)
        self.assertEqual("then\n", self.inside(other, "cat", "/root/file"))

    def test_disk_is_copied_as_it_is_at_one_moment(self) -> None:
        machine = self.deployed(Machine(disks=ROOT + volatile(64)))
        self.inside(machine, "sh", "-c", "echo then > /media/1/file")
        with self.busy(machine):
            for file in (self.snapshot(machine, 1), self.snapshot(machine, 1, 1), self.image(machine, 1)):
                self.require_clean(file)
                self.assertEqual("then\n", diskfiles.in_ext(file, "file"))
            self.assertTrue(self.is_written(machine))
        self.inside(machine, "sh", "-c", "echo now > /media/1/file")
        self.ok("shutdown", machine, lcm=POWEROFF)
        shutil.copyfile(self.directory / "disk.1.snap/0", self.directory / "disk.1")
        self.ok("deploy", machine, lcm=RESUME)
        self.assertEqual("then\n", self.inside(machine, "cat", "/media/1/file"))

    def test_qcow2_disk_is_saved_as_an_image_that_stands_by_itself(self) -> None:
        machine = Machine(disks=ROOT + IMAGE.format(format="qcow2", read_only="NO"))
        self.node.give_disk(machine)
        base = self.node.datastores / "1/image"
        base.parent.mkdir()
        diskfiles.ext4(None, base)
        disk = self.directory / "disk.1"
        diskfiles.qcow2("create", "-b", str(base), "-F", "raw", str(disk))
        machine = machine.changed(disks=machine.disks.replace("<TARGET>sdb", f"<SOURCE>{base}</SOURCE><TARGET>sdb"))
        self.ok("deploy", machine, lcm=BOOT)
        self.addCleanup(self.ok, "cancel", machine, lcm=CLEANUP)
        self.inside(machine, "sh", "-c", "echo then > /media/1/file")
        self.failed("qcow2 disk", self.tm(machine, "snap_create_live", 1, "0"))
        with self.busy(machine):
            saved = self.image(machine, 1)
        told = subprocess.check_output(["qemu-img", "info", str(saved)], text=True)
        self.assertIn("file format: qcow2", told)
        self.assertNotIn("backing file", told)
        raw = self.images / "raw"
        subprocess.run(["qemu-img", "convert", "-O", "raw", saved, raw], check=True)
        self.assertEqual("then\n", diskfiles.in_ext(raw, "file"))
        self.require_clean(raw)

    def test_read_only_disk_is_copied(self) -> None:
        machine = Machine(disks=ROOT + IMAGE.format(format="raw", read_only="YES"))
        self.node.give_disk(machine)
        disk = diskfiles.ext4(None, self.directory / "disk.1")
        self.ok("deploy", machine, lcm=BOOT)
        self.addCleanup(self.ok, "cancel", machine, lcm=CLEANUP)
        self.assertEqual(disk.read_bytes(), self.snapshot(machine, 1).read_bytes())

    def test_nothing_stays_frozen_when_a_copy_is_killed(self) -> None:
        machine = self.deployed(Machine(disks=ROOT + volatile(64)))
        begun = self.images / "begun"
        self.describe(machine, SNAPSHOT)
        with self.busy(machine), self.node.stuck("cp", f"touch {begun}; exec sleep 600"):
            with subprocess.Popen(self.words(machine, "snap_create_live", 1, "0"), env=self.node.environment,
                                  stdin=subprocess.DEVNULL, start_new_session=True) as process:
                await_that(begun.exists, "the disk is copied")
                self.assertFalse(self.is_written(machine))
                os.killpg(process.pid, signal.SIGKILL)
            await_that(lambda: self.is_written(machine), "it is thawed")
        self.snapshot(machine, 1)
        self.assertEqual(["disk.0", "disk.1", "lxdone.running"], self.left())

    def test_killed_copy_of_a_root_leaves_a_vm_that_runs_and_nothing_after_its_end(self) -> None:
        machine = self.deployed()
        self.describe(machine, SNAPSHOT)

        def packed() -> bool:
            return any(image.get("filename", "").startswith("containerhost-export-")
                       for image in self.engine.client.images())

        with subprocess.Popen(self.words(machine, "snap_create_live", 0, "0"), env=self.node.environment,
                              stdin=subprocess.DEVNULL, start_new_session=True) as process:
            await_that(lambda: packed() or process.poll() is not None, "LXD packed the root", pause=0.01)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        self.assertEqual(Status.RUNNING, self.status(machine))

    def test_full_datastore_is_told_and_leaves_nothing(self) -> None:
        self.directory.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", self.directory], check=True)
        self.addCleanup(subprocess.run, ["umount", self.directory])
        machine = self.deployed(Machine(disks=ROOT + volatile(64)))
        self.inside(machine, "sh", "-c",
                    "for directory in media/1 root; do head -c 30000000 /dev/urandom > /$directory/big; "
                                         "done; sync")
        # A file system whose disk has no room to grow becomes read-only, even if that lasts for a moment only.
        with self.busy(machine), self.node.stuck("cp", "echo copied >&2; exit 1"):
            for disk in (0, 1):
                self.failed("No space left", self.tm(machine, "snap_create_live", disk, "0"))
                self.failed("No space left", self.tm(machine, "cpds", disk, str(self.images / "new"), "-1"))
            self.assertTrue(self.is_written(machine))
        self.assertEqual((["disk.0", "disk.1", "lxdone.running"], []), (self.left(), os.listdir(self.images)))

    def test_what_is_no_disk_or_does_not_run_is_refused(self) -> None:
        machine = self.deployed(Machine(disks=ROOT + volatile(64)))
        self.failed("no disk", self.tm(machine, "cpds", 7, str(self.images / "new"), "-1"))
        for words in (("x", "1"), ("1", "x"), ("1", "1;id"), ("2", "1"), ("1", "1", "1"), ("1",)):
            result = self.copied(machine, *words)
            self.assertNotEqual(0, result.status, words)
            self.assertNotIn("mistake", result.reason)
        self.assertIn("belongs to another VM 1", self.copied(machine.changed(stime=5), "1", "1").reason)
        self.node.state.joinpath("namesakes/one-1").unlink()
        self.ok("save", machine, lcm=SUSPEND)
        self.failed("is frozen", self.tm(machine, "snap_create_live", 1, "0"))
        self.ok("restore", machine, lcm=RESTORE)
        self.ok("shutdown", machine, lcm=POWEROFF)
        self.failed("is stopped", self.tm(machine, "snap_create_live", 1, "0"))
        self.assertEqual(["disk.0", "disk.1"], self.left())
        self.ok("deploy", machine, lcm=RESUME)

    def copied(self, machine: Machine, *words: str) -> Result:
        return self.node.command(f"lxdone vmm copy_disk {shlex.join(words)} <<'EOT'\n{machine.vm(3, 'one-1')}\nEOT")

    def test_datastore_of_another_user(self) -> None:
        """Root follows no link under the name of a copy, and the copy belongs to that user."""
        machine = Machine(disks=ROOT + volatile(64))
        self.node.give_disk(machine)
        victim = self.node.datastores.parent / "victim"
        victim.write_text("root's own")
        for name in ("lxdone.copy.1", "lxdone.copy.1.unfinished", "lxdone.copy.0"):
            (self.directory / name).symlink_to(victim)
        subprocess.run(["chown", "--recursive", "--no-dereference", f"{ONEADMIN}:{ONEADMIN}", self.node.datastores],
                       check=True)
        self.ok("deploy", machine, lcm=BOOT)
        self.addCleanup(self.ok, "cancel", machine, lcm=CLEANUP)
        for disk in (0, 1):
            found = self.snapshot(machine, disk).stat()
            self.assertEqual((ONEADMIN, ONEADMIN, 0o600), (found.st_uid, found.st_gid, found.st_mode & 0o777))
        self.assertEqual(("root's own", 0), (victim.read_text(), victim.stat().st_uid))
        (self.directory / "disk.1").unlink()
        (self.directory / "disk.1").symlink_to(victim)
        self.failed("is not in a datastore", self.tm(machine, "snap_create_live", 1, "1"))
