# SPDX-License-Identifier: Apache-2.0
"""Freezer files of both versions of control groups, as captured trees."""

from pathlib import Path

import fixtures
import testtools

from containerhost.engines.docker import frozen
from containerhost.errors import EngineTimeout
from containerhost.linux import freezer
from containerhost.linux.sysfs import Host

ID = "0123456789abcdef" * 4


class FrozenTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.root = Path(self.useFixture(fixtures.TempDir()).path)
        self.host = Host(self.root)

    def group(self, path: str, **files: str) -> None:
        directory = self.root / "sys/fs/cgroup" / path
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (directory / name.replace("_", ".")).write_text(text)

    def states(self) -> tuple[bool, bool]:
        group = frozen.freezer(self.host, ID)
        assert group
        return frozen.is_frozen(self.host, ID), group.is_frozen(self.host)

    def test_version_1(self) -> None:
        for text, expected in (("THAWED", (False, False)), ("FREEZING", (True, False)), ("FROZEN", (True, True))):
            self.group(f"freezer/docker/{ID}", freezer_state=f"{text}\n")
            self.assertEqual(expected, self.states())

    def test_version_2(self) -> None:
        for asked, done, expected in (("0", "0", (False, False)), ("1", "0", (True, False)), ("1", "1", (True, True)),
                                      ("0", "1", (False, True))):
            self.group(f"system.slice/docker-{ID}.scope", cgroup_freeze=f"{asked}\n",
                       cgroup_events=f"populated 1\nfrozen {done}\n")
            self.assertEqual(expected, self.states())

    def test_one_process_at_a_time(self) -> None:
        self.useFixture(fixtures.MockPatchObject(freezer, "GROUPS", Path(self.host.root, "locks/groups")))
        self.group(f"docker/{ID}", cgroup_freeze="0\n")

        def second() -> None:
            with frozen.locked(self.host, ID, 0):
                self.fail("both have the lock")

        with frozen.locked(self.host, ID, 0):
            self.assertIn("another process", str(self.assertRaises(EngineTimeout, second)))
        with frozen.locked(self.host, ID, 0):
            self.assertEqual((False, False), self.states())

    def test_lock_not_needed_when_it_does_not_run(self) -> None:
        with frozen.locked(self.host, ID, 0), frozen.locked(self.host, ID, 0):
            self.assertIsNone(frozen.freezer(self.host, ID))
