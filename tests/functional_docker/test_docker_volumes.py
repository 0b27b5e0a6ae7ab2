# SPDX-License-Identifier: Apache-2.0
"""The host's side of further disks: places to mount at, whatever an earlier call left."""

import os
import subprocess
from pathlib import Path

import fixtures
import testtools

from containerhost.engines.docker.volumes import Volumes
from containerhost.errors import HostActionFailed, SpecError
from containerhost.linux.storage import growth
from tests.functional.lxd import mounts_below
from tests.functional_one.diskfiles import loops

HERE = (0, 0)


class VolumesTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.base = Path(self.useFixture(fixtures.TempDir()).path)
        self.volumes = Volumes(self.base / "media")
        self.disk = self.base / "disk.1"
        with self.disk.open("wb") as file:
            file.truncate(8 << 20)
        self.addCleanup(lambda: self.assertEqual(([], []), (mounts_below(self.base), loops(self.base))))
        self.addCleanup(self.volumes.remove)

    def formatted(self) -> Path:
        subprocess.run(["mkfs.ext4", "-q", "-F", str(self.disk)], check=True, capture_output=True)
        return self.disk

    def test_a_disk_comes_and_goes(self) -> None:
        for _ in range(2):
            self.volumes.prepare()
        self.formatted()
        for _ in range(2):
            self.volumes.mount(3, self.disk, read_only=False, root=HERE)
        self.assertEqual({3}, self.volumes.mounted())
        for _ in range(2):
            self.volumes.unmount(3)
        for _ in range(2):
            self.volumes.remove()

    def test_a_damaged_file_system_never_stops_the_host(self) -> None:
        """Its super block may ask for a panic of the kernel."""
        self.volumes.prepare()
        subprocess.run(["tune2fs", "-e", "panic", str(self.formatted())], check=True, capture_output=True)
        for read_only in (False, True):
            self.volumes.mount(3, self.disk, read_only=read_only, root=HERE)
            line, = (line for line in Path("/proc/self/mounts").read_text().splitlines() if "/media/3 " in line)
            self.assertIn("errors=remount-ro", line.split()[3].split(","))
            self.volumes.unmount(3)

    def test_what_a_killed_call_left_is_no_place_to_mount_at(self) -> None:
        directory = self.volumes.directory
        directory.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "left", str(directory)], check=True)
        os.symlink("/etc", directory / "3")
        self.assertRaises(HostActionFailed, self.volumes.mount, 3, self.formatted(), read_only=False, root=HERE)
        self.volumes.prepare()
        self.assertFalse((directory / "3").is_symlink())
        self.assertRaises(OSError, (directory / "new").mkdir)

    def test_what_took_the_place_of_a_mounted_disk_is_mounted(self) -> None:
        """The cloud may not have got the answer to the attachment of the one before."""
        self.volumes.prepare()
        self.volumes.mount(3, self.formatted(), read_only=False, root=HERE)
        (self.volumes.directory / "3/before").touch()
        other = self.base / "other"
        other.write_bytes(bytes(8 << 20))
        subprocess.run(["mkfs.ext4", "-q", "-F", str(other)], check=True, capture_output=True)
        os.replace(other, self.disk)
        for _ in range(2):
            self.volumes.mount(3, self.disk, read_only=False, root=HERE)
            self.assertEqual(["lost+found"], os.listdir(self.volumes.directory / "3"))
            self.assertEqual([str(self.disk)], loops(self.base))
        self.volumes.unmount(3)

    def test_a_disk_that_an_administrator_looks_into_is_not_mounted_without_being_writable(self) -> None:
        self.volumes.prepare()
        (self.base / "look").mkdir()
        subprocess.run(["mount", "-o", "ro,loop", str(self.formatted()), str(self.base / "look")], check=True)
        try:
            self.assertRaises(HostActionFailed, self.volumes.mount, 3, self.disk, read_only=False, root=HERE)
            self.volumes.mount(4, self.disk, read_only=True, root=HERE)
        finally:
            subprocess.run(["umount", str(self.base / "look")], check=True)
        self.volumes.unmount(4)
        self.volumes.mount(3, self.disk, read_only=False, root=HERE)

    def test_a_disk_in_use_grows_or_stays_as_it_was(self) -> None:
        """The kernel resizes a mounted ext4 only for a root that has CAP_SYS_RESOURCE."""
        self.volumes.prepare()
        self.assertRaises(HostActionFailed, self.volumes.grow, 3, self.formatted(), 64 << 20)
        self.volumes.mount(3, self.disk, read_only=False, root=HERE)
        size = 8 << 20
        try:
            self.volumes.grow(3, self.disk, 64 << 20)
            size = 64 << 20
        except HostActionFailed as error:
            self.assertIn("CAP_SYS_RESOURCE", str(error))
        self.volumes.unmount(3)
        self.assertEqual([size] * 2, [self.disk.stat().st_size, growth.ext_size(self.disk)])

    def test_what_has_no_file_system_and_no_place_is_refused(self) -> None:
        self.volumes.prepare()
        self.assertRaises(SpecError, self.volumes.mount, 3, self.disk, read_only=False, root=HERE)
        self.formatted()
        for number in (256, -1):
            self.assertRaises(SpecError, self.volumes.mount, number, self.disk, read_only=False, root=HERE)
        self.assertEqual(frozenset(), self.volumes.mounted())
