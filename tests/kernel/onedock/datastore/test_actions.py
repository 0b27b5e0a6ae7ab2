# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
from pathlib import Path

from onedriver.errors import BadInput, NotSupported
from tests.unit.onedock.datastore.base import DatastoreTestCase
from tests.unit.onedock.images import Image, write


class DataTest(DatastoreTestCase):
    def made(self, **image: str) -> Path:
        return Path(self.act("mkfs", {"TYPE": "2"} | image))

    def file_system(self, path: Path) -> str:
        return subprocess.run(["blkid", "-p", "-o", "value", "-s", "TYPE", path], capture_output=True, text=True,
                              check=False).stdout.strip()

    def test_a_data_block_is_a_file_system(self) -> None:
        for asked, found in (("ext3", "ext3"), ("ext4", "ext4"), ("", "ext4")):
            path = self.made(FS=asked, SIZE="8", FORMAT="raw")
            self.assertEqual((found, 8 << 20), (self.file_system(path), path.stat().st_size))
            self.act("rm", {"SOURCE": str(path)})
        self.assertEqual([], self.left())

    def test_snapshots(self) -> None:
        disk = self.made(SIZE="1")
        write(disk.with_name(f"{disk.name}.snap"), {"0": b"zero", "1": b"one", "2": b"two"})
        target = {"SOURCE": str(disk)}
        self.act("snap_delete", target | {"TARGET_SNAPSHOT": "2"})
        self.act("snap_revert", target | {"TARGET_SNAPSHOT": "0"})
        self.assertEqual((b"zero", ["0", "1"]),
                         (disk.read_bytes(), sorted(os.listdir(disk.with_name(f"{disk.name}.snap")))))
        for action in ("snap_delete", "snap_revert", "snap_flatten"):
            self.assertRaises(BadInput, self.act, action, target | {"TARGET_SNAPSHOT": "2"})
            self.assertRaises(BadInput, self.act, action, target)
        self.act("snap_flatten", target | {"TARGET_SNAPSHOT": "1"})
        self.assertEqual((b"one", [disk.name]), (disk.read_bytes(), self.left()))
        image = self.registered(self.file(Image().saved()))
        self.assertRaises(NotSupported, self.act, "snap_revert", {"SOURCE": str(image), "TARGET_SNAPSHOT": "0"})

    def test_exported_it_is_the_file(self) -> None:
        disk = self.made(SIZE="1")
        found = self.act("export", {"SOURCE": str(disk)})
        self.assertIn(f"<IMPORT_SOURCE>{disk}</IMPORT_SOURCE>", found)
        self.assertIn("<DISPOSE>NO</DISPOSE>", found)
