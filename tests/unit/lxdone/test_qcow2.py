# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import testtools

from lxdone.disk import qcow2
from lxdone.disk.qcow2 import Origin
from onedriver.errors import NotSupported

DISK = "/ds/0/1/disk.0"


class BehindTest(testtools.TestCase):
    def test_a_file_that_is_all(self) -> None:
        self.assertEqual((None, ""), qcow2.behind({"format": "qcow2", "format-specific": {"data": {}}}, DISK))

    def test_the_next_file_with_its_format(self) -> None:
        info = {"backing-filename": "base", "full-backing-filename": "/ds/0/1/base", "backing-filename-format": "raw"}
        self.assertEqual((Path("/ds/0/1/base"), "raw"), qcow2.behind(info, DISK))

    def test_what_would_open_more_than_files_of_known_formats_is_refused(self) -> None:
        for info, words in (
            ({"backing-filename": "/ds/1/a"}, "unknown"),
            ({"backing-filename": "/ds/1/a", "backing-filename-format": "vmdk"}, "vmdk"),
            ({"backing-filename": "nbd://host/x", "backing-filename-format": "raw"}, "not named by its path"),
            ({"backing-filename": "json:{}", "backing-filename-format": "raw"}, "not named by its path"),
            ({"encrypted": True}, "encrypted"),
            ({"format-specific": {"data": {"data-file": "/etc/shadow"}}}, "data_file"),
        ):
            self.assertIn(words, str(self.assertRaises(NotSupported, qcow2.behind, info, DISK)))

    def test_a_file_outside_the_datastores_is_not_even_looked_at(self) -> None:
        for name in ("/etc/shadow", "/ds/../etc/shadow"):
            error = self.assertRaises(NotSupported, qcow2.inspected, Path(name), Origin(Path("/ds")))
            self.assertIn("not in a datastore", str(error))


class OriginTest(testtools.TestCase):
    """A tenant may know where other tenants' disks are: below a number that counts up."""

    def test_the_vms_own_files_and_its_image_with_their_snapshots(self) -> None:
        for source in ("/ds/1/image", "/var/lib/one//datastores/1/image"):
            origin = Origin(Path("/ds"), source)
            for disk, file in ((DISK, DISK), (DISK, "/ds/0/1/disk.0.snap/0"), (DISK, "/ds/1/image"),
                               (DISK, "/ds/1/image.snap/3"), ("/ds/1/image", "/ds/1/image.snap/0"),
                               ("/ds/1/image.snap/0", "/ds/1/image")):
                origin.require(Path(disk), Path(file))

    def test_those_of_others_are_refused(self) -> None:
        for source in ("/ds/1/image", None):
            for file in ("/ds/0/57/disk.0", "/ds/0/11/disk.0", "/ds/1/other", "/ds/2/image", "/ds/1/image.snapped",
                         "/ds/1/image.snap/../other", "/ds/1"):
                error = self.assertRaises(NotSupported, Origin(Path("/ds"), source).require, Path(DISK), Path(file))
                self.assertIn("neither the VM's own nor part of the disk's image", str(error))
        Origin(Path("/ds"), seen=True).require(Path(DISK), Path("/ds/1/image"))
