# SPDX-License-Identifier: Apache-2.0
import subprocess
from pathlib import Path

import fixtures
import testtools

from containerhost.linux.storage import growth
from lxdone.disk import filesystems, partitions
from onedriver.errors import NotSupported

MIB = 1 << 20


class PartitionsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.disk = Path(self.useFixture(fixtures.TempDir()).path) / "disk.0"

    def table(self, scheme: str, *parts: str, size: int = 40) -> None:
        """A disk of some MiB that becomes one of 100."""
        self.disk.touch()
        growth.lengthen(self.disk, size * MIB)
        subprocess.run(["sfdisk", "--quiet", str(self.disk)], input="\n".join([f"label: {scheme}", *parts]), text=True,
                       check=True)
        growth.lengthen(self.disk, 100 * MIB)

    def test_the_last_partition_reaches_to_the_end(self) -> None:
        for scheme in ("dos", "gpt"):
            self.table(scheme, "start=1MiB,size=1MiB", "start=2MiB,size=30MiB")
            self.assertIsNone(partitions.too_small(self.disk, 2 * MIB, 100 * MIB))
            for _ in range(2):
                partitions.stretch(self.disk, 2 * MIB, 30)
                first, second = filesystems.partitions(self.disk)
                self.assertEqual((1, scheme, MIB, MIB), first)
                self.assertEqual((2, scheme, 2 * MIB), second[:3])
                self.assertTrue(97 * MIB <= second.size <= 98 * MIB)
            self.disk.unlink()

    def test_partitions_that_cannot_grow(self) -> None:
        for scheme, start, words, parts in (
                ("gpt", 2 * MIB, "a partition after partition 1", ("start=2MiB,size=20MiB", "start=30MiB,size=2MiB")),
                ("dos", 6 * MIB, "partition 5 within another",
                 ("start=2MiB,size=30MiB,type=extended", "start=6MiB,size=20MiB"))):
            with self.subTest(words):
                self.table(scheme, *parts)
                before = self.disk.read_bytes()
                self.assertIn(words, str(self.assertRaises(NotSupported, partitions.stretch, self.disk, start, 30)))
                self.assertIn(words, partitions.too_small(self.disk, start, 0) or "")
                self.assertEqual(before, self.disk.read_bytes())
                self.disk.unlink()
        self.table("gpt", "start=2MiB,size=30MiB")
        self.useFixture(fixtures.MonkeyPatch("shutil.which", lambda name: None))
        self.assertIn("install fdisk", partitions.too_small(self.disk, 2 * MIB, 0) or "")

    def test_there_is_no_room_that_a_partition_would_lack(self) -> None:
        self.table("gpt", "start=2MiB,size=20MiB", "start=30MiB,size=69MiB", size=100)
        self.assertIsNone(partitions.too_small(self.disk, 2 * MIB, 100 * MIB))
        self.assertIn("after partition 1", partitions.too_small(self.disk, 2 * MIB, 200 * MIB) or "")

    def test_only_a_disk_without_content_is_empty(self) -> None:
        self.disk.write_bytes(bytes(8 * MIB))
        self.assertTrue(filesystems.is_empty(self.disk))
        with self.disk.open("r+b") as file:
            file.seek(1 * MIB)
            file.write(b"x")
        self.assertFalse(filesystems.is_empty(self.disk))
