# SPDX-License-Identifier: Apache-2.0
import os
import stat
import tempfile
from pathlib import Path

import testtools

from tools.cloud import ini
from tools.cloud.layout import LONGEST_DIRECTORY, Layout, Passwords
from tools.showcase.inside import cpu_set


class FilesCase(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)


class FilesTest(FilesCase):
    def test_an_option_with_several_values_is_written_once_for_each(self) -> None:
        text = ini.text_of({"pci": {"alias": ["one", "two"], "report_in_placement": "true"}, "vnc": {}})
        self.assertEqual("[pci]\nalias = one\nalias = two\nreport_in_placement = true\n\n[vnc]\n", text)

    def test_configuration_is_for_root_only_whatever_the_mask(self) -> None:
        self.addCleanup(os.umask, os.umask(0))
        ini.write(self.directory / "new" / "nova.conf", {"DEFAULT": {"a": "b"}})
        self.assertEqual(0o600, stat.S_IMODE((self.directory / "new" / "nova.conf").stat().st_mode))

    def test_passwords_differ_and_stay(self) -> None:
        path = self.directory / "passwords.json"
        passwords = Passwords(path)
        self.assertNotEqual(passwords["nova"], passwords["glance"])
        self.assertEqual(passwords["nova"], Passwords(path)["nova"])
        self.assertEqual(0o600, stat.S_IMODE(path.stat().st_mode))

    def test_a_path_too_long_for_sockets_is_refused(self) -> None:
        self.assertEqual(Path("/short/run"), Layout(Path("/short")).run)
        error = self.assertRaises(ValueError, Layout, Path("/" + "x" * LONGEST_DIRECTORY))
        self.assertIn("shorter path", str(error))

    def test_cpu_lists(self) -> None:
        for text, cpus in [("", set()), ("3", {3}), ("0-2,7", {0, 1, 2, 7}), ("0,4-5", {0, 4, 5})]:
            self.assertEqual(frozenset(cpus), cpu_set(text))
