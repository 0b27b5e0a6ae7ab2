# SPDX-License-Identifier: Apache-2.0
import os
import pathlib

import fixtures
import testtools

from tests.fakehost.entries import Action, Directory, File, Link, Node, Writer
from tests.unit.fakehost import MEMORY

ENTRIES = (
    File("sys/bus/pci/devices/x/vendor", "0x10de\n"),
    File("sys/bus/pci/devices/x/config", b"\xff\xff"),
    Link("sys/bus/pci/devices/x/subsystem", "sys/bus/pci"),
    Link("sys/class/drm/card0", "sys/bus/pci/devices/x"),
    Directory("sys/class/net"),
    Node("dev/dri/card0", 226, 0),
    Action("sys/bus/pci/drivers/y/bind", "bind", content=""),
)


class TestWriter(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir(rootdir=MEMORY)).path)
        self.writer = Writer(self.root)

    def test_what_is_written_can_be_read(self):
        self.writer.write(ENTRIES)
        self.assertEqual("0x10de\n", (self.root / "sys/bus/pci/devices/x/vendor").read_text())
        self.assertEqual(b"\xff\xff", (self.root / "sys/class/drm/card0/config").read_bytes())
        self.assertEqual("../../bus/pci/devices/x", os.readlink(self.root / "sys/class/drm/card0"))
        self.assertTrue((self.root / "sys/class/net").is_dir())
        self.assertEqual("", (self.root / "dev/dri/card0").read_text())

    def test_files_are_written_over(self):
        self.writer.write([File("a", "long content\n")])
        self.writer.write([File("a", "short\n")])
        self.assertEqual("short\n", (self.root / "a").read_text())

    def test_removing_leaves_nothing(self):
        self.writer.write(ENTRIES)
        self.writer.remove(ENTRIES)
        self.assertEqual([], list(self.root.iterdir()))

    def test_removing_leaves_the_others(self):
        self.writer.write(ENTRIES)
        self.writer.remove(ENTRIES[:1])
        self.assertFalse((self.root / ENTRIES[0].path).exists())
        for entry in ENTRIES[1:]:
            self.assertTrue((self.root / entry.path).exists(), entry)

    def test_links_are_relative_as_relpath_makes_them(self):
        for number, (link, target) in enumerate(
            (
                ("a/b/c", "a/b/d"),
                ("a/b/c", "a"),
                ("a/b/c", "x/y"),
                ("a", "b/c"),
                ("a/b/c/d", "a/x/c/d"),
                ("a/b", "a/b/c"),
            )
        ):
            path = f"{number}/{link}"
            self.writer.write([Link(path, f"{number}/{target}")])
            expected = os.path.relpath(f"{number}/{target}", os.path.dirname(path))
            self.assertEqual(expected, os.readlink(self.root / path))
