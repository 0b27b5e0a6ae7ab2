# SPDX-License-Identifier: Apache-2.0
"""Root disks that are no tarballs, with real loop devices and mounts, and volatile disks."""

import contextlib
import io
import os
import stat
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import BinaryIO, cast
from unittest import mock

import fixtures

from containerhost.engines.contract import Status
from containerhost.engines.lxd.images import fingerprint
from containerhost.images.rebuild import rebuild
from lxdone.disk import filesystems
from lxdone.root import root_state
from lxdone.root.root_packing import PackedRoot
from onedriver.errors import DriverError
from tests import levels
from tests.functional_one import diskfiles
from tests.functional_one.test_actions import BOOT, CLEANUP, POWEROFF, RESUME, ActionsCase
from tests.functional_one.vms import ROOT, Machine
from tests.waiting import await_that


class RootTest(ActionsCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.tree = diskfiles.tree(self.node.lxd.images["unified"], self.directory)
        self.addCleanup(self._no_loops)

    def _no_loops(self) -> None:
        self.wait_for(lambda: diskfiles.loops(self.node.datastores) == [])

    def boots(self, machine: Machine, disk: Path) -> None:
        self.node.give_disk(machine, disk)
        self.ok("deploy", machine, lcm=BOOT)
        self.addCleanup(self.ok, "cancel", machine, lcm=CLEANUP)
        self.assertEqual([], [entry.name for entry in (self.node.state / machine.name).iterdir()
                              if entry.name not in ("context", root_state.FILE)])
        self._no_loops()

    def test_a_file_system_with_everything_in_it(self) -> None:
        (self.tree / "root/deep").mkdir(parents=True)
        (self.tree / "root/deep/file").write_text("content\n")
        os.symlink("../nowhere", self.tree / "root/link")
        os.setxattr(self.tree / "root/deep/file", "user.mark", b"kept")
        os.chown(self.tree / "root/deep/file", 12, 34)
        (self.tree / "root/deep/file").chmod(0o4751)
        machine = Machine()
        self.boots(machine, diskfiles.ext4(self.tree, self.directory / "ext4"))
        root = Path(f"/proc/{self.pid(machine)}/root/root")
        self.assertEqual(("content\n", "../nowhere", b"kept", 0o4751),
                         ((root / "deep/file").read_text(), os.readlink(root / "link"),
                          os.getxattr(root / "deep/file", "user.mark"),
                          stat.S_IMODE((root / "deep/file").stat().st_mode)))
        self.assertEqual("12 34\n", self.inside(machine, "stat", "-c", "%u %g", "/root/deep/file"))
        self.inside(machine, "sh", "-c", "echo new > /root/deep/file")
        self.ok("cancel", machine, lcm=POWEROFF)
        self.ok("deploy", machine, lcm=RESUME)
        self.assertEqual("new\n", self.inside(machine, "cat", "/root/deep/file"))

    def test_two_vms_of_one_file_system_share_their_image(self) -> None:
        disk = diskfiles.ext4(self.tree, self.directory / "ext4")
        first, second = Machine(), Machine(2)
        self.boots(first, disk)
        self.boots(second, disk)
        self.assertEqual(1, len(self.engine.client.images()))
        self.ok("cancel", first, lcm=CLEANUP)
        self.assertEqual(1, len(self.engine.client.images()))

    @levels.exhaustive("a file system with everything in it stays")
    def test_the_largest_partition(self) -> None:
        file_system = diskfiles.ext4(self.tree, self.directory / "ext4")
        self.boots(Machine(), diskfiles.partitioned(file_system, self.directory / "partitioned"))

    @levels.exhaustive("a file system with everything in it stays")
    def test_qcow2_over_an_image_of_the_datastore(self) -> None:
        base = self.node.datastores / "1/image"
        overlay = self.over(base)
        source = ROOT.replace("<TARGET>", f"<SOURCE>{base}</SOURCE><TARGET>")
        self.boots(Machine(disks=source), overlay)

    def over(self, base: Path) -> Path:
        """Make a root, and a qcow2 image that shows its content."""
        base.parent.mkdir(parents=True)
        diskfiles.ext4(self.tree, base)
        overlay = self.directory / "overlay"
        diskfiles.qcow2("create", "-b", str(base), "-F", "raw", str(overlay))
        return overlay

    def test_qcow2_over_the_disk_of_another_vm_is_refused(self) -> None:
        """A tenant may write its path into an image: VMs are numbered."""
        self.node.give_disk(Machine(), self.over(self.node.datastores / "0/57/disk.0"))
        self.refused("neither the VM's own nor part of the disk's image", "deploy", Machine(), lcm=BOOT)
        self._nothing_is_left()

    def test_what_cannot_be_removed_leads_root_nowhere(self) -> None:
        """A link that cannot be removed stays where the root's directory is to be: tar would write through it."""
        disk, point, host = diskfiles.ext4(self.tree,
                                           self.directory / "kept"), self.directory / "point", self.directory / "host"
        point.mkdir()
        host.mkdir()
        immutable = f"mount {disk} {point} && rm -r {point}/* && ln -s {host} {point}/lost+found && chattr +i {point}"
        subprocess.run(["unshare", "--mount", "sh", "-c", immutable], check=True)
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as root:
            root.addfile(tarfile.TarInfo("rootfs/lost+found/evil"))
        exports = mock.Mock()
        exports.reading.return_value = contextlib.nullcontext(io.BytesIO(archive.getvalue()))
        packed = PackedRoot(exports, mock.Mock(size=1), self.directory, 30)
        self.assertRaises(DriverError, packed.fill, disk, None, new=False)
        self.assertEqual([], list(host.iterdir()))

    @levels.exhaustive("a file system with everything in it stays")
    def test_squashfs(self) -> None:
        self.boots(Machine(), self.node.lxd.images["squashfs"])

    def test_what_cannot_be_a_root_leaves_nothing(self) -> None:
        good = diskfiles.ext4(self.tree, self.directory / "ext4")
        empty = diskfiles.ext4(None, self.directory / "empty")
        cut = self.directory / "cut"
        cut.write_bytes(good.read_bytes()[:diskfiles.MIB])
        qcow2, foreign = self.directory / "qcow2", self.directory / "foreign"
        qcow2.write_bytes(b"QFI\xfb" + bytes(4096))
        diskfiles.qcow2("create", "-b", str(good), "-F", "raw", str(foreign))
        for disk, words in ((empty, "no /sbin/init"), (cut, "cannot be used: mount: "),
                            (qcow2, "cannot be read: qemu-img: "), (foreign, "is not in a datastore"),
                            (diskfiles.partitioned(cut, self.directory / "partitioned"), "cannot be used: mount: ")):
            machine = Machine()
            self.node.give_disk(machine, disk)
            self.refused(words, "deploy", machine, lcm=BOOT)
            self._nothing_is_left()
            self._no_loops()

    def test_an_end_by_force_leaves_no_loop_device(self) -> None:
        disk = diskfiles.ext4(self.tree, self.directory / "ext4")
        def unread() -> None:
            with filesystems.archived(disk, filesystems.find(disk), self.directory, 5):
                self.wait_for(lambda: diskfiles.loops(self.directory) != [])  # without a reader, tar blocks
                self.wait_for(lambda: diskfiles.loops(self.directory) == [])

        error = self.assertRaises(DriverError, unread)
        self.assertIn("not done within 5 s", str(error))
        self.assertEqual({"ext4", "tree"}, set(os.listdir(self.directory)))

    def test_an_image_is_whole_or_is_none_and_the_same_each_time(self) -> None:
        disk = diskfiles.ext4(self.tree, self.directory / "ext4")
        first, second = (self.rebuilt(disk) for _ in range(2))
        self.assertEqual(first, second)
        with self.node.stuck("tar", "head -c 100000 /dev/zero; exit 2"):
            machine = Machine()
            self.node.give_disk(machine, disk)
            self.refused("cannot be used: ", "deploy", machine, lcm=BOOT)
        self._nothing_is_left()

    def rebuilt(self, disk: Path) -> str:
        with (filesystems.archived(disk, filesystems.find(disk), self.directory, 60) as archive,
              tempfile.TemporaryFile() as target):
            rebuild(archive, cast(BinaryIO, target), None, 60)
            return fingerprint(cast(BinaryIO, target), b"")


def volatile(size: int, mark: str = "", number: int = 1) -> str:
    return f"<DISK>{mark}<DISK_ID>{number}</DISK_ID><SIZE>{size}</SIZE><TARGET>sdb</TARGET><TYPE>fs</TYPE></DISK>"


MARK = "<ATTACH>YES</ATTACH>"
PLACE = ("/var/lib/one//datastores/0/1/disk.1", "sdb", "1")


@levels.exhaustive("disks at the start and of a running VM stay", tests=(
    "test_a_snapshot_of_the_root_outlives_a_disk", "test_enlarged_while_the_vm_is_off",
    "test_held_to_its_size_until_it_is_enlarged",))
class VolatileTest(ActionsCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = self.node.datastores / "0/1"
        self.addCleanup(lambda: self.assertEqual([], diskfiles.loops(self.node.datastores)))

    def fill(self, machine: Machine, megabytes: int, directory: str = "/media/1") -> str:
        return self.inside(machine, "sh", "-c", f"dd if=/dev/urandom of={directory}/big bs=1M count={megabytes} "
                                                f"2>/dev/null && sync && echo fits; rm -f {directory}/big; sync")

    def given(self, machine: Machine) -> Machine:
        self.node.give_volatile(machine)
        return machine

    def test_from_the_start_to_the_end(self) -> None:
        machine = self.deployed(Machine(disks=ROOT + volatile(64)))
        self.inside(machine, "sh", "-c", "echo kept > /media/1/file")
        for action, lcm in (("reset", 3), ("cancel", POWEROFF)):
            self.ok(action, machine, lcm=lcm)
        self.assertEqual("kept\n", diskfiles.in_ext(self.directory / "disk.1", "file"))
        self.ok("deploy", machine, lcm=RESUME)
        self.assertEqual("kept\n", self.inside(machine, "cat", "/media/1/file"))
        # Another disk came and this one went while the VM was off, for which no script is called.
        self.ok("cancel", machine, lcm=POWEROFF)
        (self.directory / "disk.1").unlink()
        changed = self.given(machine.changed(disks=ROOT + volatile(64, number=2)))
        self.ok("deploy", changed, lcm=RESUME)
        self.assertEqual([str(self.directory / "disk.2")], diskfiles.loops(self.node.datastores))
        self.assertEqual("lost+found", self.inside(changed, "ls", "/media/2").strip())
        self.assertIn("No such file", self.inside(changed, "cat", "/media/1/file"))

    @levels.exhaustive("test_images has volumes that come and go")
    def test_it_comes_and_goes_while_the_vm_runs(self) -> None:
        machine = self.deployed(Machine(devices=(self.gpus[0],)))
        before = self.pid(machine)
        more = self.given(machine.changed(disks=ROOT + volatile(64, MARK)))
        self.ok("attach_disk", more, *PLACE, "message")
        self.inside(machine, "sh", "-c", "echo kept > /media/1/file")
        self.ok("attach_disk", more, *PLACE, "message")
        self.assertEqual("kept\n", self.inside(machine, "cat", "/media/1/file"))
        for _ in range(2):
            self.ok("detach_disk", more, *PLACE)
        self.assertIn("No such file", self.inside(machine, "cat", "/media/1/file"))
        self.assertEqual(([], before), (diskfiles.loops(self.node.datastores), self.pid(machine)))
        self.assertEqual("/dev/nvidia0\n", self.inside(machine, "ls", "/dev/nvidia0"))

    def test_held_to_its_size_until_it_is_enlarged(self) -> None:
        machine = self.deployed(Machine(disks=ROOT + volatile(32)))
        before = self.pid(machine)
        self.inside(machine, "sh", "-c", "echo kept > /media/1/file")
        self.assertEqual("", self.fill(machine, 64))
        larger = machine.changed(disks=ROOT + volatile(128))
        for _ in range(2):
            self.ok("resize_disk", larger, "1", "128", "message", "node1")
        self.assertEqual("fits\n", self.fill(machine, 64))
        root = machine.changed(disks=ROOT.replace("256", "512") + volatile(128))
        self.ok("resize_disk", root, "0", "512", "message", "node1")
        self.assertEqual(str(512 * diskfiles.MIB),
                         self.engine.client.instance("one-1")[0]["devices"]["root"]["size"])
        self.assertEqual("fits\n", self.fill(machine, 300, "/root"))
        self.assertEqual((before, "kept\n"), (self.pid(machine), self.inside(machine, "cat", "/media/1/file")))
        self.refused("has no disk '7'", "resize_disk", larger, "7", "128", "message", "node1")

    def test_enlarged_while_the_vm_is_off(self) -> None:
        machine = self.deployed(Machine(disks=ROOT + volatile(32)))
        self.inside(machine, "sh", "-c", "echo kept > /media/1/file")
        self.ok("cancel", machine, lcm=POWEROFF)
        os.truncate(self.directory / "disk.1", 128 * diskfiles.MIB)  # by the transfer driver
        self.ok("deploy", machine.changed(disks=ROOT + volatile(128)), lcm=RESUME)
        self.assertEqual("fits\n", self.fill(machine, 64))
        self.assertEqual("kept\n", self.inside(machine, "cat", "/media/1/file"))

    def test_one_in_use_that_the_kernel_does_not_enlarge_stays_as_it_is(self) -> None:
        machine = self.deployed(Machine(disks=ROOT + volatile(32)))
        hold = "exec 3> /media/1/held; echo $$ > /root/held; exec sleep 600"
        with subprocess.Popen(["nsenter", "--target", str(self.pid(machine)), "--all", "sh", "-c", hold],
                              env={"PATH": "/bin:/usr/bin"}):
            await_that(lambda: self.inside(machine, "cat", "/root/held").strip().isdecimal(), "the file is open")
            result = self.node.act("resize_disk", machine.changed(disks=ROOT + volatile(128)), "1", "128", "message",
                                   "node1")
            self.assertEqual("", self.inside(machine, "cat", "/media/1/held"))
            self.assertEqual("fits\n" if result.status == 0 else "", self.fill(machine, 64))
            self.assertEqual((128 if result.status == 0 else 32) * diskfiles.MIB,
                             (self.directory / "disk.1").stat().st_size)
            self.inside(machine, "sh", "-c", "kill -9 $(cat /root/held)")
        self.ok("resize_disk", machine.changed(disks=ROOT + volatile(128)), "1", "128", "message", "node1")
        self.assertEqual("fits\n", self.fill(machine, 64))

    def test_a_snapshot_of_the_root_outlives_a_disk(self) -> None:
        machine = self.deployed()
        more = self.given(machine.changed(disks=ROOT + volatile(64, MARK)))
        self.ok("attach_disk", more, *PLACE, "message")
        self.ok("snapshot_create", more, "0")
        self.ok("detach_disk", more, *PLACE)
        self.ok("snapshot_revert", machine, "snap-0")
        self.assertEqual(([], Status.RUNNING), (diskfiles.loops(self.node.datastores), self.status(machine)))

    def test_swap_is_refused_before_anything_changes(self) -> None:
        """A container may not swapon: its memory is MEMORY."""
        for disk in (volatile(64).replace(">fs<", ">swap<"), volatile(64, "<FORMAT>swap</FORMAT>")):
            machine = Machine(disks=ROOT + disk)
            self.node.give_disk(machine)
            self.refused("disk 1 is swap space, which containers do not support", "deploy", machine, lcm=2)
            self.assertEqual((), self.engine.containers())

    @levels.exhaustive("test_images has volumes that come and go")
    def test_what_cannot_be_attached_changes_nothing(self) -> None:
        machine = self.deployed()
        image = f"<DISK>{MARK}<DISK_ID>1</DISK_ID><SIZE>4</SIZE><TYPE>FILE</TYPE></DISK>"
        for disks, words in ((ROOT, "0 disks"), (ROOT + image, "disk.1 cannot be read"),
                             (ROOT + volatile(4, MARK), "disk.1 cannot be read"),
                             (ROOT + volatile(64, MARK).replace(">fs<", ">swap<"), "is swap space"),
                             (ROOT + volatile(64, MARK + "<FORMAT>swap</FORMAT>"), "is swap space")):
            self.refused(words, "attach_disk", machine.changed(disks=disks), *PLACE, "message")
        (self.directory / "disk.1").write_bytes(b"x" * diskfiles.MIB)
        changed = machine.changed(disks=ROOT + volatile(4, MARK))
        self.refused("no file system", "attach_disk", changed, *PLACE, "message")
        self.assertEqual([], diskfiles.loops(self.node.datastores))
        self.assertEqual({"mount-context", "root"}, set(self.engine.client.instance("one-1")[0]["devices"]))
