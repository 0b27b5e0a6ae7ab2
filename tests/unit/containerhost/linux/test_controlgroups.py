# SPDX-License-Identifier: Apache-2.0
"""Names of groups that a tenant chose, and what they must not be taken for."""

import os
from pathlib import Path

import fixtures
import testtools

from containerhost.linux import controlgroups

OWN, OTHER = "/lxc.payload.own", "/lxc.payload.other"


class ParseTest(testtools.TestCase):
    def test_versions_and_controllers(self) -> None:
        self.assertEqual({"freezer": OWN, "cpu": OWN, "cpuacct": OWN, "name=systemd": "/", "": "/a:b"},
                         controlgroups.parse(f"6:freezer:{OWN}\n5:cpu,cpuacct:{OWN}\n1:name=systemd:/\n0::/a:b\n"
                                             .encode()))

    def test_nothing_but_a_line_feed_ends_a_line(self) -> None:
        for end in "\r\v\f\x1c\x1d\x1e\x85\u2028\u2029":
            name = f"{OWN}/y{end}5:devices:{OTHER}"
            found = controlgroups.parse(f"0::{name}\n4:devices:{OWN}\n".encode())
            self.assertEqual({"": name, "devices": OWN}, found, repr(end))

    def test_first_line_counts_and_odd_ones_are_passed_over(self) -> None:
        self.assertEqual({"devices": OWN}, controlgroups.parse(
            f"b\n\n4\n4:devices:{OWN}\n5:devices:{OTHER}\n".encode()))
        self.assertEqual(["/\udcff"], list(controlgroups.parse(b"0::/\xff\n").values()))


class WalkTest(testtools.TestCase):
    """On directories in place of groups."""

    def test_each_before_and_after_those_below_it_however_deep_they_are(self) -> None:
        top, depth = Path(self.useFixture(fixtures.TempDir()).path), 20
        (top / "beside").mkdir()
        fd = os.open(top, os.O_DIRECTORY)
        for number in range(depth):  # longer than PATH_MAX
            name = f"{number:0250}"
            os.mkdir(name, dir_fd=fd)
            there = os.open(name, os.O_DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = there
        os.close(fd)
        steps = [(os.stat(path).st_ino, before) for path, before in controlgroups.walk(str(top))]
        entered = [inode for inode, before in steps if before]
        left = [inode for inode, before in steps if not before]
        self.assertEqual((depth + 2, sorted(entered)), (len(set(entered)), sorted(left)))
        self.assertEqual([top.stat().st_ino] * 2, [steps[0][0], steps[-1][0]])
        last = steps.index((entered[-1], True))
        self.assertEqual((entered[-1], False), steps[last + 1])
        self.assertEqual([], list(controlgroups.walk(f"{top}/gone")))
