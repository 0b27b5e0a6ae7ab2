# SPDX-License-Identifier: Apache-2.0
"""Test what can be tried on this process itself; nodes of real containers are in the functional tests."""

import os
import stat
from pathlib import Path

import fixtures
import testtools

from containerhost.errors import HostActionFailed
from containerhost.linux import daemonnodes
from containerhost.linux.storage import blocknodes
from containerhost.linux.storage.blocknodes import NodeMissing
from containerhost.privileged import Privileged

OWN = os.getpid()


class NodeTest(testtools.TestCase):
    """Block nodes in the directory of a daemon."""

    def setUp(self) -> None:
        super().setUp()
        home = Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.MockPatchObject(daemonnodes, "home", lambda server: str(home)))
        self.directory = home / "devices/c1"
        self.directory.mkdir(parents=True)
        self.node = self.directory / "unix.block--v.dev-vdb"
        os.mknod(self.node, stat.S_IFBLK | 0o600, os.makedev(7, 200))

    def mode(self) -> int:
        return stat.S_IMODE(self.node.stat().st_mode)

    def test_fenced_and_restored_with_every_place_where_it_is_bound(self) -> None:
        os.link(self.node, self.directory / "bound")
        blocknodes.fence(1, "c1", "block-v", (7, 200))
        self.assertEqual(0, stat.S_IMODE((self.directory / "bound").stat().st_mode))
        blocknodes.restore(1, "c1", OWN, "block-v", (7, 200), 0o600)
        self.assertEqual(0o600, self.mode())
        self.assertEqual(str(self.node.stat().st_ino), blocknodes.inode(1, "c1", "block-v", (7, 200))[1])

    def test_what_the_daemon_has_taken_away_stays_fenced(self) -> None:
        blocknodes.fence(1, "c1", "block-v", (7, 200))
        self.node = self.node.rename(self.directory / "bound")
        blocknodes.restore(1, "c1", OWN, "block-v", (7, 200), 0o600)
        self.assertEqual(0, self.mode())

    def test_what_is_not_the_device_is_touched_by_nobody(self) -> None:
        os.symlink(self.node, self.directory / "unix.link.dev-vdc")
        for container, device, number in (("c1", "block-v", (7, 0)), ("c1", "other", (7, 200)),
                                          ("c2", "block-v", (7, 200)), ("c1", "link", (7, 200))):
            for action in (blocknodes.fence, blocknodes.inode):
                self.assertRaises(NodeMissing, action, 1, container, device, number)
            blocknodes.restore(1, container, OWN, device, number, 0o666)
        self.assertEqual(0o600, self.mode())

    def test_a_helper_takes_no_other_path(self) -> None:
        root = Privileged()
        for container in ("..", "a/b", ""):
            for action, more in ((root.fence_block, ((7, 200),)), (root.block_users, ([OWN], (7, 200))),
                                 (root.restore_block, (OWN, (7, 200), 0o600))):
                self.assertRaises(HostActionFailed, action, 1, container, "block-v", *more)
        for source in ("/etc/shadow", "/dev/../etc/shadow"):
            self.assertRaises(HostActionFailed, root.copy_block, source, "/dev/sda", 0, 1)

    def test_what_is_no_block_device_is_not_copied(self) -> None:
        error = self.assertRaises(HostActionFailed, Privileged().copy_block, "/dev/null", "/dev/zero", 0, 1)
        self.assertIn("is not a block device", str(error))


class RootTest(testtools.TestCase):
    def test_the_containers_root_on_the_host(self) -> None:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            inside, outside, _ = map(int, file.readline().split())
        self.assertEqual(outside if inside == 0 else 0, blocknodes.root_of(OWN, "uid_map"))
