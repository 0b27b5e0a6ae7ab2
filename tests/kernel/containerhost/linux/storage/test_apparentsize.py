# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import fixtures
import testtools

from containerhost.errors import HostActionFailed
from containerhost.linux.daemonnodes import home
from containerhost.linux.storage import apparentsize
from containerhost.privileged import Privileged

HOLE = 2**40


class ApparentSizeTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        directory = self.useFixture(fixtures.TempDir()).path
        self.useFixture(fixtures.MonkeyPatch("containerhost.linux.storage.apparentsize.home", lambda server: directory))
        self.root = Path(directory) / "storage-pools/default/containers/c1/rootfs"
        self.root.mkdir(parents=True)

    def test_holes_count_once_and_links_are_not_followed(self) -> None:
        (self.root / "hole").touch()
        os.truncate(self.root / "hole", HOLE)
        os.link(self.root / "hole", self.root / "again")
        outside = Path(self.useFixture(fixtures.TempDir()).path) / "large"
        outside.touch()
        os.truncate(outside, HOLE)
        (self.root / "link").symlink_to(outside)
        found = apparentsize.measure(1, "default", "c1", 60)
        self.assertIsNotNone(found)
        self.assertTrue(HOLE <= found < HOLE + 2**20, found)

    def test_root_that_is_not_mounted(self) -> None:
        self.assertIsNone(apparentsize.measure(1, "default", "c2", 60))

    def test_daemon_that_is_out_of_sight(self) -> None:
        self.useFixture(fixtures.MonkeyPatch("containerhost.linux.storage.apparentsize.home", home))
        self.assertIsNone(apparentsize.measure(os.getpid(), "default", "c1", 60))

    def test_only_names_are_taken(self) -> None:
        for pool, container in (("..", "c1"), (".", "c1"), ("a/b", "c1"), ("default", "../c1")):
            self.assertRaises(HostActionFailed, Privileged().apparent_size, 1, pool, container, 60)
