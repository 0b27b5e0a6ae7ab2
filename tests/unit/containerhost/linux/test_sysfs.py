# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import fixtures
import testtools

from containerhost.linux.idlist import id_list
from containerhost.linux.sysfs import Host
from tests.unit.containerhost.hosts import MEMORY


class CapturedTree(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.root = Path(self.useFixture(fixtures.TempDir(rootdir=MEMORY)).path)
        self.host = Host(self.root)
        (self.root / "sys").mkdir()
        (self.root / "dev").mkdir()

    def file(self, content: bytes) -> str:
        (self.root / "sys/file").write_bytes(content)
        return "/sys/file"

    def test_attributes(self):
        for content, text, number, char in (
            (b"0\n", "0", 0, None), (b"-1\n", "-1", -1, None), (b" 12 \n", "12", 12, None), (b"", None, None, None),
            (b"\n", None, None, None), (b"\xff\xfe\n", "��", None, None), (b"1_0\n", "1_0", None, None),
            ("\u0661\n".encode(), "\u0661", None, None), (b"9" * 5000, "9" * 4096, None, None),
            (b"226:128\n", "226:128", None, (226, 128)), (b"4096:0\n", "4096:0", None, None),
            (b"1:1048576\n", "1:1048576", None, None), (b"1:2:3\n", "1:2:3", None, None),
            (b"0x10\n", "0x10", None, None), (b"a\0\n", "a", None, None),
        ):
            path = self.file(content)
            self.assertEqual((text, number, char),
                             (self.host.text(path), self.host.number(path), self.host.char_number(path)), content)

    def test_what_is_no_file_reads_as_nothing(self):
        (self.root / "sys/directory").mkdir()
        os.mkfifo(self.root / "sys/pipe")
        (self.root / "sys/link").symlink_to("/dev/zero")
        (self.root / "sys/loop").symlink_to("loop")
        for path in ("/sys/directory", "/sys/pipe", "/sys/link", "/sys/loop", "/sys/missing", "/sys/a\0b",
                     "/sys/directory/" + "x" * 5000):
            self.assertIsNone(self.host.text(path), path)
            self.assertIsNone(self.host.data(path, 1 << 20) or None, path)
            self.assertEqual([], self.host.lines(path))
        for path in ("/sys/pipe", "/sys/missing", "/sys/a\0b"):
            self.assertEqual((), self.host.names(path))
            self.assertIsNone(self.host.link(path))

    def test_tables(self):
        path = self.file(b"MemTotal:  12 kB\nMemTotal: 13 kB\nno colon\nGPU UUID: \t GPU-1:2\n")
        self.assertEqual({"MemTotal": "12 kB", "GPU UUID": "GPU-1:2"}, self.host.fields(path))

    def test_majors_are_those_of_character_devices(self):
        (self.root / "proc").mkdir()
        (self.root / "proc/devices").write_text(
            "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\nxx odd\n508 nvidia-caps\n\n"
            "Block devices:\n  8 sd\n511 nvidia-uvm\n")
        self.assertEqual({"mem": 1, "nvidia": 195, "nvidiactl": 195, "nvidia-caps": 508}, self.host.char_majors)

    def test_misc_numbers_from_sysfs_or_proc(self):
        self.assertIsNone(self.host.misc_number("rdma_cm"))
        (self.root / "proc").mkdir()
        (self.root / "proc/misc").write_text(" 57 other\n 58 rdma_cm\n")
        self.assertEqual((10, 58), self.host.misc_number("rdma_cm"))
        (self.root / "sys/class/misc/rdma_cm").mkdir(parents=True)
        (self.root / "sys/class/misc/rdma_cm/dev").write_text("10:59\n")
        self.assertEqual((10, 59), self.host.misc_number("rdma_cm"))

    def test_a_file_stands_for_a_node(self):
        (self.root / "dev/nvidia0").touch()
        (self.root / "dev/directory").mkdir()
        self.assertIsNone(self.host.node_fault("/dev/nvidia0", 195, 0))
        self.assertIn("is missing", self.host.node_fault("/dev/nvidia1", 195, 1))
        self.assertIn("no device node", self.host.node_fault("/dev/directory", 195, 1))


class ThisHost(testtools.TestCase):
    def test_nodes_are_compared_by_number(self):
        host = Host()
        self.assertIsNone(host.node_fault("/dev/null", 1, 3))
        self.assertIn("is 1:3, but the driver's is 195:0", host.node_fault("/dev/null", 195, 0))
        self.assertIn("no device node", host.node_fault("/etc/passwd", 1, 3))

    def test_a_root_by_another_name_is_live_too(self):
        self.assertTrue(Host("//").live)
        self.assertTrue(Host("/dev/..").live)
        self.assertFalse(Host("/dev").live)

    def test_long_tables_come_whole(self):
        self.assertEqual(Path("/proc/kallsyms").read_text().count("\n"), len(Host().lines("/proc/kallsyms")))


class Lists(testtools.TestCase):
    def test_the_kernels_list_format(self):
        for text, expected in (("0-3,8", {0, 1, 2, 3, 8}), ("", set()), (None, set()), ("5", {5}), ("3-1", set()),
                               ("a,2,-,1-,4-5", {2, 4, 5}), ("0-99999999999", set()), ("²", set())):
            self.assertEqual(frozenset(expected), id_list(text), text)
