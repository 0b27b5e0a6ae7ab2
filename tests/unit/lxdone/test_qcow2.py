from pathlib import Path

import testtools

from lxdone.disk import qcow2
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
            ({"backing-filename": "/ds/1/a"}, "not told"),
            ({"backing-filename": "/ds/1/a", "backing-filename-format": "vmdk"}, "vmdk"),
            ({"backing-filename": "nbd://host/x", "backing-filename-format": "raw"}, "not named by its path"),
            ({"backing-filename": "json:{}", "backing-filename-format": "raw"}, "not named by its path"),
            ({"encrypted": True}, "encrypted"),
            ({"format-specific": {"data": {"data-file": "/etc/shadow"}}}, "data_file"),
        ):
            self.assertIn(words, str(self.assertRaises(NotSupported, qcow2.behind, info, DISK)))

    def test_a_file_outside_the_datastores_is_not_even_looked_at(self) -> None:
        for name in ("/etc/shadow", "/ds/../etc/shadow"):
            error = self.assertRaises(NotSupported, qcow2.require_within, Path(name), Path("/ds"))
            self.assertIn("not in a datastore", str(error))
