# SPDX-License-Identifier: Apache-2.0
"""Test requests when the daemon is down, slow, restarted in the middle, or has no room."""

import ctypes
import re
import signal
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import fixtures
from testtools.matchers import MatchesRegex

from containerhost import errors
from containerhost.engines.contract import Status
from containerhost.engines.lxd.client import LxdClient, Settings
from containerhost.engines.lxd.engine import LxdEngine
from containerhost.engines.spec import DirectoryDisk, RootDisk
from tests import levels
from tests.functional.containerhost.base import LxdTestCase, MiB
from tests.functional.lxd import Lxd

FORGOTTEN = 7.0  # s after an operation's end; LXD keeps it for 5


class TestDaemonTrouble(LxdTestCase):
    def test_one_that_ends_by_itself_fails_its_test_and_is_there_for_the_next(self):
        fixture = Lxd()
        fixture.setUp()
        self.running()
        pid = self.lxd.daemon.pid
        # kill(2) may choose a thread of SQLite, and Go prints its trace only for a signal to one of its own threads.
        ctypes.CDLL(None).tgkill(pid, pid, signal.SIGABRT)
        error = self.assertRaises(AssertionError, fixture.cleanUp)
        self.assertRegex(str(error), r"lxd ended by itself \(status -?\d+\); its log: SIGABRT: abort")
        with Lxd() as following:
            self.assertEqual((), following.engine.containers())

    def test_never_there(self):
        engine = LxdEngine(LxdClient(Settings(endpoint="/nonexistent/unix.socket")))
        self.assertIn("/nonexistent/unix.socket", str(self.assertRaises(errors.EngineUnavailable, engine.server)))

    def test_no_daemon_behind_an_address(self):
        engine = LxdEngine(LxdClient(Settings(endpoint="https://127.0.0.1:1", request_timeout=5)))
        self.assertRaises(errors.EngineUnavailable, engine.server)

    def test_slow_answers_end_in_time(self):
        engine = LxdEngine(self.lxd.daemon.client(request_timeout=1, operation_timeout=1))
        engine.server()
        self.lxd.daemon.pause(True)
        try:
            self.assertRaises(errors.EngineTimeout, engine.containers)
            # A new thread creates its own connection.
            fresh = LxdEngine(self.lxd.daemon.client(request_timeout=1))
            self.assertRaises(errors.EngineTimeout, fresh.containers)
        finally:
            self.lxd.daemon.pause(False)
        self.assertEqual((), engine.containers())

    def test_operation_that_takes_too_long(self):
        self.running()
        engine = LxdEngine(self.lxd.daemon.client(operation_timeout=1))
        operation = engine.client.request("put", "instances", "c1", "state", asked="stop", json={
            "action": "stop", "timeout": 30, "force": False}).json()["metadata"]
        # busybox needs more than a second to end its processes.
        self.assertRaises(errors.EngineTimeout, engine.client.wait, operation, "stop container c1")

    def kill_during(self, action: Callable[[], None], pause: float) -> None:
        """Kill the daemon ``pause`` seconds into ``action``: its caller hears of it, and deleting leaves nothing."""
        killer = threading.Timer(pause, self.lxd.daemon.kill)
        killer.start()
        try:
            action()
        except errors.EngineError as error:
            self.assertIsInstance(error, errors.EngineUnavailable)
        finally:
            killer.join()
            self.lxd.daemon.kill()
            self.lxd.daemon.start()
        self.engine.delete("c1")
        self.assertFalse(self.engine.exists("c1"))

    def test_killed_in_the_middle_of_a_creation(self):
        for pause in levels.some("LXD killed in a creation", (0.0, 0.01, 0.03, 0.06), (1, 3)):
            self.kill_during(lambda: self.engine.create(self.spec()), pause)
        self.running()
        self.assertEqual(Status.RUNNING, self.engine.container("c1").status)

    def test_killed_in_the_middle_of_a_start(self):
        for pause in levels.some("LXD killed in a start", (0.02, 0.1), (1,)):
            self.engine.create(self.spec())
            self.kill_during(lambda: self.engine.start("c1"), pause)


class SlowWaits(LxdClient):
    """Asks for the end of an operation so late that LXD has forgotten it, as through a slow connection.

    :ivar really: that long after its end; else for an operation that LXD never had, about which it says the same
    """

    really = True

    def request(self, method, *path, asked, **arguments):
        if path[:1] == ("operations",) and path[-1:] == ("wait",):
            super().request(method, *path, asked=asked, **arguments)
            if self.really:
                time.sleep(FORGOTTEN)
            else:
                path = ("operations", str(uuid.uuid4()), "wait")
        return super().request(method, *path, asked=asked, **arguments)


class TestForgottenOperations(LxdTestCase):
    def setUp(self):
        super().setUp()
        self.waits = SlowWaits(self.lxd.daemon.client().settings)
        self.slow = LxdEngine(self.waits, locks=Path(self.useFixture(fixtures.TempDir()).path))

    def test_what_went_well_is_not_undone(self):
        spec = self.spec()
        self.slow.create(spec)
        self.waits.really = False
        self.slow.start("c1")
        self.assertEqual(Status.RUNNING, self.engine.container("c1").status)
        disk = DirectoryDisk("d1", str(self.useFixture(fixtures.TempDir()).path), "/mnt/d1")
        self.slow.attach("c1", disk)
        self.slow.detach("c1", disk)
        for act, status in ((self.slow.freeze, Status.FROZEN), (self.slow.unfreeze, Status.RUNNING)):
            act("c1")
            self.assertEqual(status, self.engine.container("c1").status)
        self.slow.stop("c1", timeout=60, force=True)
        self.slow.rename("c1", "c2")
        self.assertEqual(Status.STOPPED, self.engine.container("c2").status)
        self.slow.delete("c2")
        self.assertEqual((), self.engine.containers())

    def test_creation_that_failed_is_not_taken_for_made(self):
        self.assertRaises(errors.EngineError, self.slow.create, self.spec(root=RootDisk("default", 1 * MiB)))
        self.assertFalse(self.engine.exists("c1"))


class TestStorage(LxdTestCase):
    def test_image_larger_than_the_root_disk(self):
        error = self.assertRaises(errors.EngineError, self.engine.create, self.spec(root=RootDisk("default", 1 * MiB)))
        self.assertIsInstance(error, errors.StorageFull)
        self.assertFalse(self.engine.exists("c1"))

    def test_full_pool(self):
        client = self.engine.client
        client.finish(client.request("post", "storage-pools", asked="make a pool", json={
            "name": "small", "driver": "btrfs", "config": {"size": "128MiB"}}), "make a pool")
        self.addCleanup(client.request, "delete", "storage-pools", "small", asked="remove the pool")
        self.addCleanup(self._delete_pool_content, "small")
        self.running("c1", root=RootDisk("small"))
        for file, block in (("/big", "64k"), ("/more", "1k")):
            self.inside("c1", "sh", "-c", f"dd if=/dev/urandom of={file} bs={block}; sync")
        names = [f"n{number}" for number in range(40)]
        error = self.assertRaises(errors.StorageFull, lambda: [
            self.engine.create(self.spec(name, root=RootDisk("small"))) for name in names])
        self.assertThat(str(error), MatchesRegex(".*create container n", re.S))
        left = {state.name for state in self.engine.containers()}
        self.assertNotIn(re.search("container (n[0-9]+)", str(error))[1], left)

    def _delete_pool_content(self, pool):
        for state in self.engine.containers():
            self.engine.delete(state.name)
        for volume in self.engine.client.get("storage-pools", pool, "volumes", "image", asked="list",
                                              params={"recursion": "1"}):
            self.engine.client.delete_image(volume["name"])

    def test_pool_usage(self):
        usage = self.engine.pool("default")
        self.assertEqual(("default", "btrfs"), (usage.name, usage.driver))
        self.assertTrue(0 < usage.used < usage.total, usage)
