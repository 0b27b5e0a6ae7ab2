# SPDX-License-Identifier: Apache-2.0
"""Test what can be tried on this process itself; nodes of real containers are in the functional tests."""

import mmap
import os
import stat
import subprocess
import sys

import fixtures
import testtools

from containerhost.errors import HostActionFailed
from containerhost.privileged import Privileged
from containerhost.process import openfiles, processes
from containerhost.storage import blocknodes
from containerhost.storage.blocknodes import NodeMissing

OWN = os.getpid()


class NodeTest(testtools.TestCase):
    def test_what_is_not_the_device_is_touched_by_nobody(self) -> None:
        before = os.stat("/dev/null").st_mode
        for path in ("/dev/null", "/dev/no-such-device", "/no/such/directory"):
            for action in (lambda path=path: blocknodes.fence(OWN, path, (7, 0)),
                           lambda path=path: blocknodes.inode(OWN, path, (7, 0))):
                self.assertRaises(NodeMissing, action)
            blocknodes.restore(OWN, path, (7, 0), 0o600)
        self.assertEqual(before, os.stat("/dev/null").st_mode)

    def test_a_helper_takes_no_other_path(self) -> None:
        root = Privileged()
        for path in ("/etc/shadow", "/dev/../etc/shadow", "/dev/a/b", "dev/vdb"):
            for action in (lambda path=path: root.fence_block(OWN, path, (7, 0)),
                           lambda path=path: root.restore_block(OWN, path, (7, 0), 0o600),
                           lambda path=path: root.block_users(OWN, path, (7, 0))):
                self.assertRaises(HostActionFailed, action)
        for source in ("/etc/shadow", "/dev/../etc/shadow"):
            self.assertRaises(HostActionFailed, root.copy_block, source, "/dev/sda", 0, 1)

    def test_what_is_no_block_device_is_not_copied(self) -> None:
        error = self.assertRaises(HostActionFailed, Privileged().copy_block, "/dev/null", "/dev/zero", 0, 1)
        self.assertIn("no block device", str(error))


class ProcessesTest(testtools.TestCase):
    def test_members_are_those_of_the_namespace(self) -> None:
        child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
        self.addCleanup(child.wait)
        self.addCleanup(child.stdin.close)
        self.assertLessEqual({OWN, child.pid}, set(processes.members(processes.namespace(OWN), OWN)))

    def test_what_a_process_has_in_its_memory(self) -> None:
        path = os.path.join(self.useFixture(fixtures.TempDir()).path, "file")
        with open(path, "wb") as file:
            file.write(b"x" * mmap.PAGESIZE)
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
            self.assertIn(str(os.stat(path).st_ino), {inode for _, inode in openfiles.mapped(OWN)})

    def test_a_process_that_is_gone(self) -> None:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        self.assertEqual((set(), set(), []), (openfiles.nodes(child, stat.S_IFBLK), openfiles.mapped(child),
                                              openfiles.lines(child, "maps")))

    def test_the_containers_root_on_the_host(self) -> None:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            inside, outside, _ = map(int, file.readline().split())
        self.assertEqual(outside if inside == 0 else 0, blocknodes.root_of(OWN, "uid_map"))
