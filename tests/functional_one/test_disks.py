"""Disks that are no tarballs: file systems, partitions; real loop devices and mounts."""

import os
import stat
from pathlib import Path

import fixtures

from tests.functional_one import diskfiles
from tests.functional_one.test_actions import BOOT, CLEANUP, POWEROFF, RESUME, ActionsCase
from tests.functional_one.vms import Machine


class RootTest(ActionsCase):
    def setUp(self) -> None:
        super().setUp()
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
        self.tree = diskfiles.tree(self.node.lxd.images["unified"], self.folder)
        self.addCleanup(self._no_loops)

    def _no_loops(self) -> None:
        self.wait_for(lambda: diskfiles.loops(self.node.datastores) == [])

    def boots(self, machine: Machine, disk: Path) -> None:
        self.node.give_disk(machine, disk)
        self.ok("deploy", machine, lcm=BOOT)
        self.addCleanup(self.ok, "cancel", machine, lcm=CLEANUP)
        self.assertEqual([], [entry.name for entry in (self.node.state / machine.name).iterdir()
                              if entry.name != "context"])
        self._no_loops()

    def test_a_file_system_with_everything_in_it(self) -> None:
        (self.tree / "root/deep").mkdir(parents=True)
        (self.tree / "root/deep/file").write_text("content\n")
        os.symlink("../nowhere", self.tree / "root/link")
        os.setxattr(self.tree / "root/deep/file", "user.mark", b"kept")
        os.chown(self.tree / "root/deep/file", 12, 34)
        (self.tree / "root/deep/file").chmod(0o4751)
        machine = Machine()
        self.boots(machine, diskfiles.ext4(self.tree, self.folder / "ext4"))
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
        disk = diskfiles.ext4(self.tree, self.folder / "ext4")
        first, second = Machine(), Machine(2)
        self.boots(first, disk)
        self.boots(second, disk)
        self.assertEqual(1, len(self.engine.client.images()))
        self.ok("cancel", first, lcm=CLEANUP)
        self.assertEqual(1, len(self.engine.client.images()))

    def test_the_largest_partition(self) -> None:
        file_system = diskfiles.ext4(self.tree, self.folder / "ext4")
        self.boots(Machine(), diskfiles.partitioned(file_system, self.folder / "partitioned"))

    def test_squashfs(self) -> None:
        self.boots(Machine(), self.node.lxd.images["squashfs"])

    def test_what_cannot_be_a_root_leaves_nothing(self) -> None:
        good = diskfiles.ext4(self.tree, self.folder / "ext4")
        empty = diskfiles.ext4(None, self.folder / "empty")
        cut = self.folder / "cut"
        cut.write_bytes(good.read_bytes()[:diskfiles.MIB])
        qcow2 = self.folder / "qcow2"
        qcow2.write_bytes(b"QFI\xfb" + bytes(4096))
        for disk, words in ((empty, "no /sbin/init"), (cut, "cannot be used: mount: "), (qcow2, "is a qcow2 image"),
                            (diskfiles.partitioned(cut, self.folder / "partitioned"), "cannot be used: mount: ")):
            machine = Machine()
            self.node.give_disk(machine, disk)
            self.refused(words, "deploy", machine, lcm=BOOT)
            self._nothing_is_left()
            self._no_loops()
