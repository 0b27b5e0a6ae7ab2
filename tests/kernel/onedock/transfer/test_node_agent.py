# SPDX-License-Identifier: Apache-2.0
import errno
import io
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import fixtures
import testtools
from testtools.matchers import StartsWith

from containerhost.linux.storage import growth
from onedock import cli, datafiles, imageref
from onedock.imageref import ImageRef
from onedock.transfer import node_agent
from onedriver.errors import DriverError, NotSupported
from onedriver.node import pipes
from tests.commands import script
from tests.waiting import await_that

DISK = Path("/datastores/0/1/disk.1")


class GrowthTest(testtools.TestCase):
    def test_an_xfs_that_this_host_could_not_grow_is_refused_unchanged(self) -> None:
        disk = Path(self.useFixture(fixtures.TempDir()).path) / "disk.1"
        disk.write_bytes(b"XFSB".ljust(1 << 20, b"\0"))
        self.useFixture(fixtures.MockPatch("shutil.which", return_value=None))
        self.assertIn("install package xfsprogs", str(self.assertRaises(NotSupported, datafiles.grow, disk, 8)))
        self.assertEqual(1 << 20, disk.stat().st_size)
        self.useFixture(fixtures.MockPatch("shutil.which", return_value="/usr/sbin/xfs_growfs"))
        datafiles.grow(disk, 8)
        self.assertEqual(8 << 20, disk.stat().st_size)


    def test_a_file_system_whose_counts_were_wrong_is_repaired_and_grows(self) -> None:
        """As that of a volatile disk with ext2 is after a node lost its power."""
        disk = Path(self.useFixture(fixtures.TempDir()).path) / "disk.1"
        datafiles.make(disk, 8, "ext2")
        subprocess.run(["debugfs", "-w", "-R", "set_super_value free_blocks_count 1", str(disk)], check=True,
                       capture_output=True)
        datafiles.grow(disk, 16)
        found = subprocess.run(["dumpe2fs", "-h", str(disk)], check=True, capture_output=True, text=True).stdout
        self.assertIn("16384", re.findall("Block count: +([0-9]+)", found))

    def test_one_that_is_broken_is_told_and_stays_as_it_was(self) -> None:
        disk = Path(self.useFixture(fixtures.TempDir()).path) / "0/1/disk.1"
        datafiles.make(node_agent.prepared(disk), 8, "ext4")
        with disk.open("r+b") as file:
            file.seek(1024 + 32)
            file.write(b"\xff" * 16)  # blocks and inodes of a group
        self.useFixture(fixtures.MockPatchObject(node_agent, "engine_is_there", return_value=False))
        request, err = {"do": "grow", "path": str(disk), "size": 16}, io.StringIO()
        with mock.patch("sys.stderr", err):
            self.assertEqual(1, cli.run("a step", lambda: node_agent.serve(
                io.BytesIO(json.dumps(request).encode() + b"\n"), io.BytesIO())))
        self.assertThat(err.getvalue(), StartsWith(f"a step: the file system of disk {disk} cannot be checked: "))
        self.assertEqual(8 << 20, disk.stat().st_size)


class MoveTest(testtools.TestCase):
    """A VM's directory moves to a datastore of the same host that is on another file system."""

    def setUp(self) -> None:
        super().setUp()
        base = Path(self.useFixture(fixtures.TempDir()).path)
        self.source, self.target = base / "0/1", base / "2/1"
        self.source.mkdir(parents=True)
        with (self.source / "disk.1").open("wb") as disk:
            disk.write(b"x" * (2 << 20))
            disk.truncate(64 << 20)
        self.addCleanup(setattr, os, "rename", os.rename)
        rename, os.rename = os.rename, lambda source, target: self.rename(rename, source, target)

    def rename(self, really: Callable[..., None], source: str | Path, target: str | Path) -> None:
        if Path(source) == self.source:
            raise OSError(errno.EXDEV, "another file system")
        really(source, target)

    def move(self) -> None:
        node_agent.move(self.source, {"to": str(self.target)}, io.BytesIO(), io.BytesIO())

    def test_its_disks_keep_their_holes(self) -> None:
        self.move()
        found = (self.target / "disk.1").stat()
        self.assertEqual((64 << 20, False, False), (found.st_size, found.st_blocks * 512 > 8 << 20,
                                                    self.source.exists()))

    def test_a_move_that_failed_is_repeated(self) -> None:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
        try:
            self.assertRaises((DriverError, OSError, shutil.Error), self.move)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        self.move()
        self.assertEqual((b"x" * (2 << 20), ["1"]), ((self.target / "disk.1").read_bytes().rstrip(b"\0"),
                                                    [path.name for path in self.target.parent.iterdir()
                                                     if path.name != node_agent.MARK]))


class OwnerTest(testtools.TestCase):
    """A VM's newest data is on the node that took it in a live migration; oned may ask another one for it."""

    def setUp(self) -> None:
        super().setUp()
        self.disk = Path(self.useFixture(fixtures.TempDir()).path) / "0/1/disk.0"
        self.disk.parent.mkdir(parents=True)
        self.disk.with_name("disk.0.tar").write_text("content")
        self.useFixture(fixtures.MockPatchObject(node_agent, "engine_is_there", return_value=True))
        self.as_root = self.useFixture(fixtures.MockPatchObject(node_agent, "as_root", return_value=0)).mock

    def give(self, node: str | None) -> None:
        imageref.write(self.disk, ImageRef("sha256:" + "0" * 64, "docker://x", "disk.0.tar", 1, node))

    def test_another_node_sends_and_moves_nothing(self) -> None:
        self.give("node2")
        out, target = io.BytesIO(), self.disk.parents[2] / "2/1"
        for act in (lambda: node_agent.send_archive(self.disk, {}, io.BytesIO(), out),
                    lambda: node_agent.send_root(self.disk, {"vm": 1}, io.BytesIO(), out),
                    lambda: node_agent.send(self.disk.parent, {}, io.BytesIO(), out),
                    lambda: node_agent.move(self.disk.parent, {"to": str(target)}, io.BytesIO(), out)):
            self.assertIn("node2", str(self.assertRaises(DriverError, act)))
        self.as_root.assert_not_called()
        self.assertEqual((b"", False), (out.getvalue(), target.exists()))

    def test_content_of_a_container_is_that_of_the_disk_or_newer(self) -> None:
        self.give(None)
        node_agent.send_root(self.disk, {"vm": 1}, io.BytesIO(), io.BytesIO())
        self.as_root.assert_called_once_with(["save", "1", "sha256:" + "0" * 64], out=mock.ANY)

    def test_its_own_node_does(self) -> None:
        for node in (os.uname().nodename, None):
            self.give(node)
            out = io.BytesIO()
            node_agent.send_archive(self.disk, {}, io.BytesIO(), out)
            self.assertEqual(b"content", out.getvalue())


class LockTest(testtools.TestCase):
    """With a program in the place of ``onedock lock``, whose hours are too long for a test."""

    def holder(self, script: str) -> None:
        self.useFixture(fixtures.MockPatchObject(node_agent, "engine_is_there", return_value=True))
        self.command = self.useFixture(fixtures.MockPatchObject(node_agent, "root_command",
                                                                return_value=["sh", "-c", script])).mock

    def test_what_was_done_without_the_lock_has_failed(self) -> None:
        done = mock.Mock()
        self.holder("echo '{\"used\": false}'; exit 1")

        def act() -> None:
            with node_agent.locked(DISK):
                done()

        self.assertIn("may have been used meanwhile", str(self.assertRaises(DriverError, act)))
        done.assert_called_once_with()

    def test_the_lock_ends_with_what_it_was_for(self) -> None:
        self.holder("echo '{\"used\": true}'; read line; exit 0")
        with node_agent.locked(DISK) as lock:
            self.assertTrue(lock.used)
        with testtools.ExpectedException(ZeroDivisionError), node_agent.locked(DISK):
            raise ZeroDivisionError

    def test_a_lock_that_hangs_keeps_nobody_waiting(self) -> None:
        self.useFixture(fixtures.MockPatchObject(pipes, "STALL_TIMEOUT", 0.2))
        self.useFixture(fixtures.MockPatchObject(node_agent, "RELEASE_TIMEOUT", 0.2))
        for words, reason in (("sleep 9", "does not answer"), ("echo '{\"used\": true}'; sleep 9", "meanwhile")):
            self.holder(words)
            began = time.monotonic()

            def act() -> None:
                with node_agent.locked(DISK):
                    pass

            self.assertIn(reason, str(self.assertRaises(DriverError, act)))
            self.assertLess(time.monotonic() - began, 5)

    def test_a_command_of_roots_that_hangs_keeps_nobody_waiting(self) -> None:
        self.useFixture(fixtures.MockPatchObject(pipes, "STALL_TIMEOUT", 0.2))
        self.useFixture(fixtures.MockPatchObject(node_agent, "COMMAND_TIMEOUT", 0.2))
        self.holder("sleep 9")
        began = time.monotonic()
        with open(os.devnull, "wb") as out:
            for more in ({}, {"out": out}):
                self.assertRaises(DriverError, node_agent.as_root, ["save", "1"], **more)
        self.assertLess(time.monotonic() - began, 5)

    def test_disk_in_use_is_copied_while_it_is_frozen(self) -> None:
        disk, out = self.disk(), io.BytesIO()
        self.holder("echo '{\"used\": true}'; read line; exit 0")
        node_agent.snapshot(disk, {"act": "create", "number": 3, "live": True}, io.BytesIO(), out)
        self.assertEqual(["lock", "1", "0", "1", "frozen"], self.command.call_args.args[0])
        self.assertEqual(b"content", (disk.parent / "disk.1.snap/3").read_bytes())
        stream = disk.parent / "stream"
        with stream.open("wb") as file:
            node_agent.send(disk, {"frozen": True}, io.BytesIO(), file)
        with tarfile.open(stream) as archive:
            self.assertEqual(["disk.1"], archive.getnames())
        self.assertEqual(["disk.1", "disk.1.snap", "stream"], sorted(os.listdir(disk.parent)))

    def test_copy_of_a_disk_that_was_thawed_meanwhile_is_none(self) -> None:
        disk = self.disk()
        for status in (1, 0):
            self.holder(f"echo '{{\"used\": true}}'; exit {status}" if status else "exit 1")
            for act in (lambda: node_agent.snapshot(disk, {"act": "create", "number": 3, "live": True}, io.BytesIO(),
                                                    io.BytesIO()),
                        lambda: node_agent.send(disk, {"frozen": True}, io.BytesIO(), io.BytesIO())):
                self.assertRaises(DriverError, act)
        self.assertEqual(["disk.1"], [path.name for path in disk.parent.rglob("*") if path.is_file()])

    def test_copy_for_which_there_is_no_room_leaves_nothing(self) -> None:
        disk = self.disk()
        self.holder("echo '{\"used\": true}'; read line; exit 0")
        directory = disk.parent / "bin"
        directory.mkdir()
        script(directory / "cp", "echo No space left on device >&2; exit 1;")
        self.useFixture(fixtures.EnvironmentVariable("PATH", f"{directory}:{os.environ['PATH']}"))
        for act in (lambda: node_agent.snapshot(disk, {"act": "create", "number": 3, "live": True}, io.BytesIO(),
                                                io.BytesIO()),
                    lambda: node_agent.send(disk, {"frozen": True}, io.BytesIO(), io.BytesIO())):
            self.assertIn("No space left", str(self.assertRaises(DriverError, act)))
        self.assertEqual(["cp", "disk.1"], sorted(path.name for path in disk.parent.rglob("*") if path.is_file()))

    def test_root_has_no_disk_snapshots(self) -> None:
        disk = self.disk()
        imageref.write(disk, ImageRef("sha256:" + "0" * 64, "docker://x"))
        self.assertRaises(NotSupported, node_agent.snapshot, disk, {"act": "create", "number": 3, "live": True},
                          io.BytesIO(), io.BytesIO())

    def disk(self) -> Path:
        disk = Path(self.useFixture(fixtures.TempDir()).path) / "0/1/disk.1"
        disk.parent.mkdir(parents=True)
        disk.write_text("content")
        return disk

    def test_the_lock_stays_as_long_as_a_program_that_a_killed_command_leaves(self) -> None:
        """Else a second command would change the file system that e2fsck still works on."""
        base = Path(self.useFixture(fixtures.TempDir()).path)
        disk, gate, free = base / "0/1/disk.1", base / "gate", base / "free"
        disk.parent.mkdir(parents=True)
        disk.write_bytes(bytes(growth.SUPER_BLOCK + 56) + growth.EXT_MAGIC)
        os.mkfifo(gate)
        script(base / "e2fsck", f"read line < {gate}; true")
        script(base / "onedock", f"echo '{{\"used\": false}}'; cat; touch {free}; true")
        (base / "onedock.toml").write_text(f'state = "{base}"\n')
        begin = "import sys; from onedock.transfer.node_agent import serve; serve(sys.stdin.buffer, sys.stdout.buffer)"
        environment = os.environ | {"PATH": f"{base}:{os.environ['PATH']}", "ONEDOCK_CONF": f"{base}/onedock.toml"}
        script(base / "sudo", 'shift; exec "$@";:')
        with subprocess.Popen([sys.executable, "-c", begin], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                              env=environment) as node:
            assert node.stdin
            node.stdin.write(json.dumps({"do": "grow", "path": str(disk), "size": 8}).encode() + b"\n")
            node.stdin.flush()
            with gate.open("w") as program:  # it runs
                node.send_signal(signal.SIGKILL)
                node.wait()
                time.sleep(0.5)
                self.assertFalse(free.exists())
                program.write("end\n")
        await_that(free.exists, "the lock is free again")
