# SPDX-License-Identifier: Apache-2.0
"""Limits that all containers share: what doctor compares, and the file that sets them."""

from pathlib import Path

import testtools

from containerhost.devices.findings import Severity
from containerhost.operator.doctor import limits
from tests.unit.containerhost.operator.doctor.cases import DoctorCase

FILE = Path(__file__).parents[5] / "etc/sysctl" / limits.FILE
INSTANCES = "/proc/sys/fs/inotify/max_user_instances"


class LimitsTest(DoctorCase):
    host_name = "cards"

    def test_nothing_is_known_of_a_captured_tree(self) -> None:
        self.assertEqual([], self.findings(limits.check))

    def test_default_of_inotify_instances_is_not_safe(self) -> None:
        self.tree.write(INSTANCES, "128\n")
        (found,) = self.findings(limits.check)
        self.assertEqual((Severity.WRONG, "fs.inotify.max_user_instances"), (found.severity, found.subject))
        self.tree.write(INSTANCES, "1048576\n")
        self.assertEqual([], self.findings(limits.check))

    def test_others_are_noted(self) -> None:
        for name in limits.SETTINGS:
            self.tree.write(f"/proc/sys/{name.replace('.', '/')}", "0\n")
        found = {finding.subject: finding.severity for finding in self.findings(limits.check)}
        self.assertEqual(set(limits.SETTINGS), set(found))
        self.assertEqual(1, list(found.values()).count(Severity.WRONG))

    def test_open_files_of_a_daemon(self) -> None:
        self.tree.write("/proc/4711/comm", "dockerd\n")
        for hard, expected in (("4096", ["dockerd"]), ("1048576", []), ("unlimited", [])):
            self.tree.write("/proc/4711/limits", f"Max open files            1024                 {hard:<20} files\n")
            self.assertEqual(expected, self.subjects(limits.check), hard)


class FileTest(testtools.TestCase):
    def test_file_sets_what_is_compared(self) -> None:
        lines = [line.split(" = ") for line in FILE.read_text().splitlines() if line and not line.startswith("#")]
        values = {name: int(value) for name, value in lines}
        self.assertEqual(set(limits.SETTINGS), set(values))
        for name, (least, _) in limits.SETTINGS.items():
            self.assertGreaterEqual(values[name], least, name)
