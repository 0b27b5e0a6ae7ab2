# SPDX-License-Identifier: Apache-2.0
"""A hostile tenant of LXD: what it puts in the way of the host holds nothing up and leads nowhere."""

import contextlib
import fcntl
import functools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from containerhost import errors
from containerhost.engines.contract import Status
from containerhost.engines.lxd.exports import Exports
from containerhost.engines.spec import RootDisk
from containerhost.guest.guestfiles import GuestFiles
from containerhost.linux import controlgroups, daemonhelpers, freezer
from containerhost.linux.files import write_attribute
from containerhost.linux.guest_directory import LIMIT
from containerhost.linux.process import deviceusers
from containerhost.linux.process.processes import ProcReadTimeout, is_hosts, name, pids, read_with_timeout
from containerhost.linux.sysfs import Host
from containerhost.privileged import Privileged
from tests import holddirectory, levels
from tests.functional.containerhost.base import LxdTestCase
from tests.functional.containerhost.test_lxd_devices import DeviceTestCase
from tests.nestedgroups import DEPTH, nested
from tests.waiting import await_that

HANGS = 30  # s; nothing here takes one of them
ACK, TOLD = "ack.json", "resources.json"
PLAIN = "plain"


def ends(act: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Return what ``act`` returned or raised; fail the test if it does not end."""
    found: list[tuple[Any, Exception | None]] = []

    def run() -> None:
        try:
            found.append((act(), None))
        except Exception as error:
            found.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(HANGS)
    if not found:
        raise AssertionError(f"it did not end within {HANGS} s")
    return found[0]


class HostileFilesTest(LxdTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.running("c1")
        self.files = GuestFiles(self.engine.pid, Privileged())
        self.outside = self.lxd.daemon.base / "outside"
        self.outside.mkdir()
        self.addCleanup(shutil.rmtree, self.outside)
        for file in (ACK, TOLD):
            (self.outside / file).write_text("the host's")

    def sh(self, script: str) -> None:
        status, output = self.inside("c1", "sh", "-ec", script)
        self.assertEqual(0, status, output)

    def refused(self, act: Callable[[], Any]) -> str:
        _, error = ends(act)
        self.assertIsInstance(error, errors.HostActionFailed)
        return str(error)

    def read(self) -> bytes | None:
        return self.files.read("c1", ACK)

    def write(self) -> None:
        self.files.write("c1", TOLD, b"told")

    def assert_deleted(self) -> None:
        _, error = ends(lambda: self.engine.delete("c1"))
        self.assertIsNone(error)
        self.assertFalse(self.engine.exists("c1"))
        self.assertEqual(["the host's"] * 2, [(self.outside / name).read_text() for name in (ACK, TOLD)])
        self.assertEqual([ACK, TOLD], sorted(os.listdir(self.outside)))

    def test_file_read_and_written_as_containers_root(self) -> None:
        self.assertIsNone(self.read())
        for content in (b"first and longer", b"second"):
            self.files.write("c1", TOLD, content)
            self.assertEqual(content, self.files.read("c1", TOLD))
        self.assertEqual("0 0 644\nsecond", self.inside(
            "c1", "sh", "-c", f"cd /run/containerhost && stat -c '%u %g %a' {TOLD} && cat {TOLD}")[1])
        self.assert_deleted()

    def test_fifo_in_place_of_a_file_does_not_block_host(self) -> None:
        self.sh(f"mkdir -p /run/containerhost; cd /run/containerhost; mkfifo {ACK} {TOLD}")
        self.assertIn("regular file", self.refused(self.read))
        ends(self.write)
        self.assertEqual(b"told", self.files.read("c1", TOLD))
        self.assertEqual([], list(daemonhelpers.helpers()))
        self.assert_deleted()

    def test_link_in_place_of_a_file_is_not_followed(self) -> None:
        self.sh(f"mkdir -p /run/containerhost; cd /run/containerhost; ln -s {self.outside}/{ACK} .; "
                f"ln -s {self.outside}/{TOLD} .")
        self.refused(self.read)
        ends(self.write)
        self.assertEqual(b"told", self.files.read("c1", TOLD))
        self.assert_deleted()

    def test_device_in_place_of_a_file_is_not_opened(self) -> None:
        self.sh(f"mkdir -p /run/containerhost; cd /run/containerhost; touch {ACK}; mount --bind /dev/zero {ACK} "
                f"|| mount -o bind /dev/zero {ACK}")
        self.assertIn("regular file", self.refused(self.read))
        self.assert_deleted()

    def test_large_and_growing_file_is_refused(self) -> None:
        self.sh(f"mkdir -p /run/containerhost; cd /run/containerhost; dd if=/dev/zero of={ACK} bs=1M count=8")
        self.assertIn(str(LIMIT), self.refused(self.read))
        self.inside("c1", "sh", "-c", f"(while :; do head -c 65536 /dev/zero; done > /run/containerhost/{ACK}) "
                                      "> /dev/null 2>&1 & sleep 1")
        self.refused(self.read)
        self.assert_deleted()

    def test_directory_that_leads_elsewhere_is_refused(self) -> None:
        for script in (f"ln -s {self.outside} /run/containerhost", f"ln -s ../../../../../../{self.outside} "
                       "/run/containerhost", "mkfifo /run/containerhost", "touch /run/containerhost"):
            with self.subTest(script):
                self.sh(f"rm -rf /run/containerhost; {script}")
                for act in (self.read, self.write):
                    self.refused(act)
        self.sh(f"rm -rf /run/containerhost; mv /run /run.old; ln -s {self.outside} /run")
        for act in (self.read, self.write):
            self.refused(act)
        self.assert_deleted()

    def test_file_system_that_waits_for_others_is_not_looked_into(self) -> None:
        self.sh("mkdir -p /run/containerhost; mount -t proc proc /run/containerhost")
        for act in (self.read, self.write):
            self.assertIn("type proc", self.refused(act))
        self.assert_deleted()

    def test_overlay_that_the_tenant_mounted_is_not_looked_into(self) -> None:
        """Its layers may be of any file system. Docker's own overlays are the host's."""
        self.sh("mkdir -p /run/containerhost /layers; mount -t tmpfs layers /layers; cd /layers; mkdir lower upper "
                "work; mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work,userxattr none "
                "/run/containerhost")
        for act in (self.read, self.write):
            self.assertIn("type overlay", self.refused(act))
        self.assert_deleted()

    def test_helper_at_a_fifo_does_not_keep_a_container(self) -> None:
        """An administrator's own look at the file leaves LXD's helper in it."""
        for stopped in (False, True):
            with self.subTest(stopped=stopped):
                if not self.engine.exists("c1"):
                    self.running("c1")
                self.sh(f"mkdir -p /run/containerhost; mkfifo /run/containerhost/{ACK}")
                puller = subprocess.Popen(
                    [shutil.which("lxc") or "incus", "file", "pull", f"c1/run/containerhost/{ACK}", "-"],
                    env=self.lxd.daemon.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL)
                self.addCleanup(puller.wait)
                self.addCleanup(puller.kill)
                await_that(lambda: list(daemonhelpers.helpers()), "the helper waits")
                if stopped:
                    first = self.engine.pid("c1")
                    assert first
                    os.kill(first, signal.SIGKILL)
                    await_that(lambda: self.engine.container("c1").status is Status.STOPPED, "the container ends")
                self.assert_deleted()
                self.assertEqual([], list(daemonhelpers.helpers()))

    def test_copy_of_a_huge_hole_ends_with_the_container(self) -> None:
        """On a pool of type dir LXD reads the holes of sparse files, and goes on when the container is deleted."""
        client = self.engine.client
        client.finish(client.request("post", "storage-pools", asked="make the pool", json={
            "name": PLAIN, "driver": "dir", "config": {}}), "make the pool")
        self.addCleanup(client.request, "delete", "storage-pools", PLAIN, asked="remove the pool")
        self.engine.create(self.spec("c2", root=RootDisk(PLAIN)))
        self.addCleanup(self.engine.delete, "c2")
        self.engine.start("c2")
        self.assertEqual(0, self.inside("c2", "truncate", "-s", "8192G", "/root/hole")[0])
        size = self.engine.apparent_size("c2", 60)
        self.assertTrue(size and size > 8 << 40, size)
        failed: list[errors.EngineError] = []

        def take() -> None:
            try:
                Exports(self.lxd.daemon.client(), "none", 600).take("c2", "key")
            except errors.EngineError as error:
                failed.append(error)

        taker = threading.Thread(target=take, daemon=True)
        taker.start()
        await_that(lambda: any(daemonhelpers.copied(pid) == "c2" for pid in pids()), "LXD copies the container")
        self.engine.delete("c2")
        self.assertFalse(self.engine.exists("c2"))
        taker.join(timeout=60)
        self.assertEqual(1, len(failed))
        self.assertEqual([], [pid for pid in pids() if daemonhelpers.copied(pid)])


class FrozenGroupTest(LxdTestCase):
    """With version 1 of control groups a frozen process does not end when it is killed."""

    def setUp(self) -> None:
        if not Path("/sys/fs/cgroup/freezer").is_dir():
            self.skipTest("this host has control groups of version 2")
        super().setUp()

    FREEZE = """
import subprocess
sleeper = subprocess.Popen(["sleep", "1000"])
open("cgroup.procs", "w").write(str(sleeper.pid))
open("freezer.state", "w").write("FROZEN")
print(flush=True)
while True:
    open("freezer.state", "w").write("FROZEN")
"""

    def frozen(self, depth: int) -> None:
        """Let the guest freeze a process again and again.

        :param depth: of its control group, below the container's
        """
        self.running("c1")
        pid = self.engine.pid("c1") or 0
        group = freezer.of_container(pid, Host())
        assert group
        top = os.path.dirname(group.path)
        self.addCleanup(self.thaw, top)
        process = nested(pid, top, depth, then=self.FREEZE)
        self.addCleanup(process.wait, HANGS)
        assert process.stdout
        with process.stdout as output:
            self.assertEqual(b"\n", output.readline())

    @staticmethod
    def thaw(group: str) -> None:
        for directory, _ in controlgroups.walk(group):
            with contextlib.suppress(OSError):
                write_attribute(f"{directory}/{freezer.V1}", "THAWED")

    def test_processes_that_the_guest_froze_do_not_keep_its_container(self) -> None:
        for paused, depth in ((False, 2), (True, 2), (False, DEPTH)):
            with self.subTest(paused=paused, depth=depth):
                self.frozen(depth)
                if paused:
                    self.engine.freeze("c1")
                _, error = ends(lambda: self.engine.delete("c1"))
                self.assertIsNone(error)
                self.assertFalse(self.engine.exists("c1"))


@levels.exhaustive("a call that waits stays", tests=("test_killed_service_leaves_its_locks_to_the_next",))
class HeldDirectoryTest(LxdTestCase):
    """The tenant holds a directory's lock in the kernel: who looks up a name in it, or makes one, cannot be killed."""

    SERVICE = """
import fcntl, sys
from containerhost.errors import HostActionFailed
from containerhost.privileged import Privileged
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print(flush=True)
try:
    Privileged().write_guest_file(int(sys.argv[2]), "resources.json", b"told")
except HostActionFailed as error:
    print(error, flush=True)
sys.stdin.read()
"""

    def setUp(self) -> None:
        super().setUp()
        self.running("c1")
        self.pid = self.engine.pid("c1") or 0
        self.privileged = Privileged()
        self.useFixture(holddirectory.OpenFuse())
        self.lock = self.lxd.daemon.base / "service.lock"
        self.addCleanup(self.lock.unlink, missing_ok=True)
        holddirectory.compiled(f"/proc/{self.pid}/root/tmp/{holddirectory.NAME}")
        self.addCleanup(self.let_go)

    def hold(self, directory: str) -> None:
        self.inside("c1", "sh", "-c", f"mkdir -p {directory}; "
                                      f"/tmp/{holddirectory.NAME} {directory} /tmp/served > /dev/null 2>&1 &")
        holddirectory.await_held()

    def let_go(self) -> None:
        self.inside("c1", "killall", "-9", holddirectory.NAME)

    def write(self) -> None:
        self.privileged.write_guest_file(self.pid, TOLD, b"told")

    def test_killed_service_leaves_its_locks_to_the_next(self) -> None:
        self.hold("/run/containerhost")
        service = subprocess.Popen([sys.executable, "-c", self.SERVICE, str(self.lock), str(self.pid)],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(service.communicate)
        self.addCleanup(service.kill)
        assert service.stdout
        self.assertEqual("\n", service.stdout.readline())
        self.assertIn("not done within", service.stdout.readline())
        service.kill()
        with self.lock.open("w") as file:
            _, error = ends(lambda: fcntl.flock(file, fcntl.LOCK_EX))
        self.assertIsNone(error)
        self.assertEqual(-signal.SIGKILL, service.wait(HANGS))

    def test_one_call_waits_and_those_that_follow_do_not(self) -> None:
        self.hold("/run/containerhost")
        _, error = ends(self.write)
        self.assertIsInstance(error, errors.HostActionFailed)
        begin = time.monotonic()
        for act in (self.write, lambda: self.privileged.read_guest_file(self.pid, ACK)):
            error = self.assertRaises(errors.HostActionFailed, act)
            self.assertIn("waits", str(error))
        self.assertLess(time.monotonic() - begin, 5)
        self.let_go()
        await_that(lambda: ends(self.write)[1] is None, "it is looked into again")

    def test_held_dev_does_not_hold_up_a_look_for_ever(self) -> None:
        self.hold("/dev")
        result, error = ends(lambda: self.privileged.inside(self.pid))
        self.assertTrue(result or isinstance(error, errors.HostActionFailed))


class HeldProcessTest(LxdTestCase):
    """A tenant's process makes whoever reads some of its files in /proc wait, and so all that look at all processes."""

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(holddirectory.OpenFuse())
        self.running("c1")
        self.running("c2")
        holddirectory.compiled(f"/proc/{self.engine.pid('c1')}/root/tmp/{holddirectory.NAME}")
        self.inside("c1", "sh", "-c", f"/tmp/{holddirectory.NAME} exec /tmp/served > /dev/null 2>&1 &")
        self.addCleanup(holddirectory.end)  # killall(1) in the container would wait, too
        # Its name is the new program's already, while it still has the page of the old one.
        await_that(lambda: [pid for pid in pids() if name(pid) in (holddirectory.NAME, "sleep") and not is_hosts(pid)
                            and self.holds(pid)], "the process is held")

    @staticmethod
    def holds(pid: int) -> bool:
        try:
            read_with_timeout(pid, Path(f"/proc/{pid}/maps").read_bytes, 0.5)
        except ProcReadTimeout:
            return True
        except OSError:
            return False
        return False

    def test_other_containers_are_looked_at_and_deleted(self) -> None:
        first = self.engine.pid("c2") or 0
        self.assertEqual(((), None), ends(lambda: Privileged().users([(1, 7)])))
        self.assertEqual(((), None), ends(lambda: deviceusers.users_in([first], lambda pid: None)))
        self.assertEqual((0, None), ends(lambda: Privileged().end_helpers(first)))
        _, error = ends(lambda: self.engine.delete("c2"))
        self.assertIsNone(error)

    def test_its_own_container_is_told_and_deleted(self) -> None:
        _, error = ends(lambda: deviceusers.users_in([self.engine.pid("c1") or 0], lambda pid: None))
        self.assertIsInstance(error, errors.HostActionFailed)
        _, error = ends(lambda: self.engine.delete("c1"))
        self.assertIsNone(error)
        self.running("c1")


class HostileNodesTest(DeviceTestCase):
    """A device comes to a running container whose tenant put something in its nodes' places."""

    def test_fifo_link_and_file_in_place_of_a_node_hold_nothing_up(self) -> None:
        for script in ("mkfifo {}", "ln -s /tmp/elsewhere {}", "touch {}"):
            with self.subTest(script):
                grants = self.ready()
                for node in (node for grant in grants for node in grant.nodes):
                    self.inside("c1", "sh", "-c", f"mkdir -p {os.path.dirname(node.path)}; {script.format(node.path)}")
                for grant in grants:
                    self.succeeds(functools.partial(self.engine.attach, "c1", grant))
                self.succeeds(functools.partial(self.engine.verify, "c1", grants))
                self.assertNotEqual(0, self.inside("c1", "ls", "/tmp/elsewhere")[0])
                self.succeeds(lambda: self.engine.delete("c1"))
                self.assertEqual([], list(daemonhelpers.helpers()))
                self.allocator.release(self.consumer("c1"))

    def succeeds(self, act: Callable[[], Any]) -> None:
        _, error = ends(act)
        self.assertIsNone(error)
