# SPDX-License-Identifier: Apache-2.0
import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import fixtures
import testtools

from containerhost.engines.docker import volumes
from containerhost.engines.docker.volumes import Volumes
from containerhost.errors import HostActionFailed
from containerhost.linux.lock import try_lock
from containerhost.linux.storage import growth, mountedfs

MIB = 1 << 20


class GrowthCase(testtools.TestCase):
    """A mounted disk of 8 MiB, which is to have 64."""

    def setUp(self) -> None:
        super().setUp()
        self.base = Path(self.useFixture(fixtures.TempDir()).path)
        self.file, self.blocks = self.base / "disk.1", 1
        self.file.write_bytes(b"content")
        growth.lengthen(self.file, 8 * MIB)
        self.useFixture(fixtures.MockPatch("os.path.ismount", side_effect=lambda path: self.blocks > 0))
        self.useFixture(fixtures.MockPatch("os.statvfs",
                                           side_effect=lambda path: SimpleNamespace(f_blocks=self.blocks)))
        self.measure = self.useFixture(fixtures.MockPatchObject(mountedfs, "measure")).mock

    @property
    def size(self) -> int:
        return self.file.stat().st_size // MIB


class LengthenedTest(GrowthCase):
    def failed(self, act: Callable[[], object] = int, size: int = 64) -> int:
        """:returns: the file's size after a growth that failed"""
        with testtools.ExpectedException(ZeroDivisionError), growth.lengthened(self.file, size * MIB, self.base):
            act()
            raise ZeroDivisionError
        return self.size

    def test_a_failed_growth_leaves_what_was_there(self) -> None:
        self.assertEqual((8, b"content"), (self.failed(), self.file.read_bytes().rstrip(b"\0")))
        self.measure.assert_called_once_with(self.base)

    def test_a_file_keeps_what_its_file_system_may_have(self) -> None:
        self.assertEqual(64, self.failed(lambda: setattr(self, "blocks", 2)))
        self.assertEqual(96, self.failed(lambda: setattr(self, "blocks", 0), 96))
        self.measure.assert_not_called()

    def test_a_file_is_not_cut_while_a_program_works_on_it(self) -> None:
        fd = os.open(self.file, os.O_RDONLY)
        self.addCleanup(os.close, fd)
        self.assertEqual((True, 64), (try_lock(fd), self.failed()))

    def test_a_file_becomes_longer_never_shorter(self) -> None:
        self.assertEqual((8, 8), (self.failed(size=8), self.failed(size=4)))
        with growth.lengthened(self.file, 64 * MIB, self.base):
            pass
        self.assertEqual(64, self.size)


class AloneTest(GrowthCase):
    def test_a_disk_of_a_datastore_on_nfs_can_be_locked(self) -> None:
        """There the kernel makes it a lock of the whole file's bytes, for which that must be open for writing."""
        def flock(fd: int, operation: int) -> None:
            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))

        self.useFixture(fixtures.MockPatch("fcntl.flock", side_effect=flock))
        with growth.alone(self.file, 1):
            pass
        with testtools.ExpectedException(ZeroDivisionError), growth.lengthened(self.file, 64 * MIB, self.base):
            raise ZeroDivisionError
        self.assertEqual(8, self.size)


class VolumesTest(GrowthCase):
    def setUp(self) -> None:
        super().setUp()
        self.volumes = Volumes(self.base / "media")
        self.mount = self.useFixture(fixtures.MockPatchObject(volumes, "mount_of")).mock
        self.kernel = self.useFixture(fixtures.MockPatchObject(mountedfs, "enlarge")).mock

    def test_a_mounted_disk_grows_as_a_whole_or_not_at_all(self) -> None:
        self.kernel.side_effect = HostActionFailed("not permitted")
        self.assertRaises(HostActionFailed, self.volumes.grow, 1, self.file, 64 * MIB)
        self.assertEqual(8, self.size)
        self.kernel.side_effect = None
        self.volumes.grow(1, self.file, 64 * MIB)
        self.assertEqual((64, (self.base / "media/1", 64 << 10)), (self.size, self.kernel.call_args.args[:2]))

    def test_a_disk_that_is_not_mounted_is_left(self) -> None:
        self.mount.side_effect = HostActionFailed("nothing is mounted")
        self.assertRaises(HostActionFailed, self.volumes.grow, 1, self.file, 64 * MIB)
        self.assertEqual(8, self.size)
