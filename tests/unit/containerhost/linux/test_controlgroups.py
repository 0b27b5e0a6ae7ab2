# SPDX-License-Identifier: Apache-2.0
"""Names of groups that a tenant chose, and what they must not be taken for."""

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
