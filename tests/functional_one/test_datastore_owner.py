# SPDX-License-Identifier: Apache-2.0
"""Test what the datastores' owner, who may change everything in them at any time, cannot make root do.

He decides which of his files are a VM's disks, but root opens nothing else for him, writes nothing elsewhere and gives
no file away."""

import os
import shutil
import stat
import subprocess
import threading
from pathlib import Path

from lxdone.disk import stamps
from lxdone.root import root_state
from onedriver.node import datastores
from tests import levels
from tests.functional_one import diskfiles
from tests.functional_one.node import Result
from tests.functional_one.test_actions import BOOT, CLEANUP, POWEROFF, RESUME, ActionsCase
from tests.functional_one.test_disks import MARK
from tests.functional_one.test_images import PLACE, image
from tests.functional_one.vms import ROOT, Machine

ONEADMIN = 59869  # an unprivileged user
TEXT = "root's own text"


class DatastoreOwnerTest(ActionsCase):
    def setUp(self) -> None:
        super().setUp()
        self.store, self.directory = self.node.datastores / "0", self.node.datastores / "0/1"
        self.images = self.node.datastores / "1"
        for directory in (self.directory, self.images):
            directory.mkdir(parents=True)
        self.secret = self.node.datastores.parent / "secret"
        self.secret.write_text(f"{TEXT}\n")
        self.secret.chmod(0o600)
        self.victim = self.node.datastores.parent / "victim"
        self.addCleanup(self.nothing_of_root_changed)

    def nothing_of_root_changed(self) -> None:
        self.assertEqual(f"{TEXT}\n", self.secret.read_text())
        found = self.secret.stat()
        self.assertEqual((0, 0, 0o600), (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)))
        self.assertFalse(os.path.lexists(self.victim))
        self.assertEqual([], diskfiles.loops(self.node.datastores.parent))

    def own(self) -> None:
        """Let oneadmin own the datastores and everything in them, but for what a link leads to."""
        subprocess.run(["chown", "--recursive", "--no-dereference", f"{ONEADMIN}:{ONEADMIN}",
                        str(self.node.datastores)], check=True)

    def given(self, disk: Path | None = None) -> Machine:
        self.node.give_disk(Machine(), disk)
        self.own()
        return Machine()

    def booted(self, machine: Machine | None = None) -> Machine:
        machine = machine or self.given()
        self.ok("deploy", machine, lcm=BOOT)
        self.addCleanup(self.ok, "cancel", machine, lcm=CLEANUP)
        return machine

    def file_system(self) -> Path:
        directory = self.node.datastores.parent / "work"
        directory.mkdir(exist_ok=True)
        self.addCleanup(shutil.rmtree, directory, ignore_errors=True)
        return diskfiles.ext4(diskfiles.tree(self.node.lxd.images["unified"], directory), directory / "ext4")

    def is_his(self, file: Path) -> bool:
        found = file.lstat()
        return stat.S_ISREG(found.st_mode) and (found.st_uid, found.st_gid) == (ONEADMIN, ONEADMIN)

    def test_whole_life_with_datastores_of_another_user(self) -> None:
        content = self.node.datastores.parent / "content"
        content.mkdir()
        (content / "file").write_text("content\n")
        (self.directory / "disk.1").symlink_to(diskfiles.ext4(content, self.images / "image"))
        base = diskfiles.ext4(content, self.images / "base")
        diskfiles.qcow2("create", "-b", str(base), "-F", "raw", str(self.directory / "disk.2"))
        self.given(self.file_system())
        machine = self.booted(Machine(disks=ROOT.replace("<SAVE><![CDATA[NO]]>", "<SAVE>YES") + image()
                                      + image(2, source=str(base))))
        for number in (1, 2):
            self.assertEqual("", self.inside(machine, "sh", "-c", f"echo written > /media/{number}/file"))
        self.inside(machine, "sh", "-c", "echo written > /root/file")
        self.ok("cancel", machine, lcm=POWEROFF)
        self.assertEqual("written\n", diskfiles.in_ext(self.images / "image", "file"))
        self.assertEqual("written\n", diskfiles.in_ext(self.directory / "disk.0", "root/file"))
        for file in (self.directory / "disk.0", self.directory / "disk.2", self.images / "image"):
            self.assertTrue(self.is_his(file), file)
        self.ok("deploy", machine, lcm=RESUME)
        self.assertEqual("written\n" * 2, self.inside(machine, "cat", "/media/1/file", "/media/2/file"))

    def test_links_under_the_names_of_marks_lead_nowhere(self) -> None:
        machine = self.given()
        mark = self.directory / root_state.RUNNING
        mark.symlink_to(self.victim)
        (self.store / stamps.STORE).symlink_to(self.victim)
        self.refused("remove what is there", "deploy", machine, lcm=BOOT)
        mark.unlink()
        self.booted(machine)
        self.assertTrue(self.is_his(mark))
        self.assertTrue(self.is_his(self.store / stamps.STORE))

    @levels.exhaustive("a link, a rename and a whole life stay")
    def test_mark_that_is_a_link_to_a_file_of_root_is_not_given_away(self) -> None:
        machine = self.given()
        (self.directory / root_state.RUNNING).symlink_to(self.secret)
        result = self.node.act("deploy", machine, lcm=BOOT)
        self.assertNotEqual(0, result.status)
        self.assertNotIn(TEXT, result.out + result.err)

    @levels.exhaustive("a link, a rename and a whole life stay")
    def test_content_of_a_file_of_root_is_not_told(self) -> None:
        machine = self.booted()
        self.ok("cancel", machine, lcm=POWEROFF)
        mark = self.directory / root_state.RUNNING
        for make in (lambda: mark.symlink_to(self.secret), lambda: os.link(self.secret, mark)):
            make()
            result = self.node.act("deploy", machine, lcm=RESUME)
            self.assertNotIn(TEXT, result.out + result.err)
            self.assertNotEqual(0, result.status)
            mark.unlink()

    @levels.exhaustive("a link, a rename and a whole life stay")
    def test_link_under_the_name_of_a_disks_new_file_is_not_followed(self) -> None:
        machine = self.booted()
        for target in (self.secret, self.victim):
            (self.directory / f"disk.0{datastores.UNFINISHED}").symlink_to(target)
            self.ok("cancel", machine, lcm=POWEROFF)
            self.assertTrue(self.is_his(self.directory / "disk.0"))
            self.ok("deploy", machine, lcm=RESUME)

    def test_disk_that_is_a_file_of_root_is_refused(self) -> None:
        roots = self.node.datastores.parent / "of-root"
        self.file_system().rename(roots)
        inside = self.images / "of-root"
        shutil.copy(roots, inside)
        machine, disk = self.given(), self.directory / "disk.0"
        os.chown(inside, 0, 0)
        for make, words in ((lambda: disk.symlink_to(roots), "is not in a datastore"),
                            (lambda: disk.symlink_to(inside), "belongs to user 0"),
                            (lambda: os.link(roots, disk), "belongs to user 0")):
            disk.unlink()
            make()
            self.refused(words, "deploy", machine, lcm=BOOT)
            self.assertFalse(self.engine.exists(machine.name))
        for path in (roots, inside):
            path.unlink()

    def test_directory_that_is_a_link_is_refused(self) -> None:
        elsewhere = self.node.datastores.parent / "elsewhere"
        machine = self.given()
        self.directory.rename(elsewhere)
        self.directory.symlink_to(elsewhere)
        self.refused("has a link or a file among its components", "deploy", machine, lcm=BOOT)
        self.assertEqual(["disk.0"], os.listdir(elsewhere))

    def test_fifo_as_a_disk_or_a_mark_ends_at_once(self) -> None:
        machine = self.given()
        (self.directory / "disk.0").unlink()
        os.mkfifo(self.directory / "disk.0")
        self.refused("is not a regular file", "deploy", machine, lcm=BOOT)
        (self.directory / "disk.0").unlink()
        self.given()
        os.mkfifo(self.directory / root_state.RUNNING)
        self.refused(f"{root_state.RUNNING} cannot be read", "deploy", machine, lcm=BOOT)

    def test_block_device_of_the_host_is_no_disk(self) -> None:
        file = self.file_system()
        done = subprocess.run(["losetup", "--find", "--show", str(file)], check=True, capture_output=True, text=True)
        node = done.stdout.strip()
        self.addCleanup(subprocess.run, ["losetup", "--detach", node], check=True)
        machine = self.booted()
        for target in (node, f"/dev/vg-one-0/..{node.removeprefix('/dev')}"):
            (self.directory / "disk.1").symlink_to(target)
            self.refused("option block_devices", "attach_disk",
                         machine.changed(disks=ROOT + image(kind="BLOCK", mark=MARK)), *PLACE, "message")
            (self.directory / "disk.1").unlink()
        (self.directory / "disk.1").symlink_to(node)
        self.node.configure(f'block_devices = ["{node}"]\n')
        self.ok("attach_disk", machine.changed(disks=ROOT + image(kind="BLOCK", mark=MARK)), *PLACE, "message")
        self.assertIn("sbin", self.inside(machine, "ls", "/media/1"))
        self.ok("detach_disk", machine.changed(disks=ROOT + image(kind="BLOCK", mark=MARK)), *PLACE)

    @levels.exhaustive("a link, a rename and a whole life stay")
    def test_context_disk_that_is_a_file_of_root_is_refused(self) -> None:
        content = self.node.datastores.parent / "content"
        content.mkdir()
        (content / "file").write_text(TEXT)
        iso = diskfiles.iso(content, self.node.datastores.parent / "iso")
        machine = self.given()
        (self.directory / "disk.9").symlink_to(iso)
        self.refused("is not in a datastore", "deploy",
                     machine.changed(context=(("FILES", "/x"), ("DISK_ID", "9"))), lcm=BOOT)
        iso.unlink()

    @levels.exhaustive("a link, a rename and a whole life stay")
    def test_qcow2_that_changes_while_it_is_read_leads_to_no_file_of_root(self) -> None:
        roots = self.node.datastores.parent / "of-root"
        self.file_system().rename(roots)
        roots.chmod(0o600)
        base = self.images / "base"
        shutil.copy(roots, base)
        disk = self.node.datastores.parent / "qcow2"
        diskfiles.qcow2("create", "-b", str(base), "-F", "raw", str(disk))
        source = ROOT.replace("<TARGET>", f"<SOURCE>{base}</SOURCE><TARGET>")
        machine = self.given(disk).changed(disks=source)
        real = shutil.which("qemu-img")
        swap = f"{real} rebase -u -b {roots} -F raw {self.directory}/disk.0"
        with self.node.stuck("qemu-img", f'if [ "$1" = convert ]; then {swap}; fi; exec {real} "$@"'):
            self.refused("Permission denied", "deploy", machine, lcm=BOOT)
        for path in (roots, disk):
            path.unlink()

    def test_renames_while_root_writes_a_disk(self) -> None:
        machine = self.booted()
        over, disk = threading.Event(), self.directory / "disk.0"
        taken = [self.directory / f"disk.0{datastores.UNFINISHED}", disk]

        def attack() -> None:
            number = 0
            while not over.is_set():
                number += 1
                link = self.directory / f"link{number}"
                link.symlink_to(self.secret if number % 2 else self.victim)
                link.rename(taken[number % 4 // 2])

        thread = threading.Thread(target=attack)
        self.ok("cancel", machine, lcm=POWEROFF)
        before = disk.read_bytes()
        self.ok("deploy", machine, lcm=RESUME)
        thread.start()
        try:
            result: Result = self.node.act("cancel", machine, lcm=POWEROFF)
        finally:
            over.set()
            thread.join()
        self.assertNotIn(TEXT, result.out + result.err)
        self.nothing_of_root_changed()
        for path in taken:
            path.unlink(missing_ok=True)
        disk.write_bytes(before)
        self.own()
