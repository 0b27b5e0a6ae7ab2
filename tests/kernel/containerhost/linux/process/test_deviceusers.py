# SPDX-License-Identifier: Apache-2.0
"""Users of devices in containers that are made of namespaces and real control groups."""

import errno
import fcntl
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from unittest import mock

import fixtures
import testtools

from containerhost.errors import HostActionFailed
from containerhost.linux import freezer
from containerhost.linux.files import closing
from containerhost.linux.process import deviceusers, openfiles, processes
from containerhost.linux.sysfs import Host
from containerhost.privileged import Privileged
from tests import levels
from tests.frozengroups import EVERY, FORKING, IDLE, Container, SilentFuse, hierarchies
from tests.waiting import await_that

NUMBER = (511, os.getpid())  # of a node that no other test has
LOOKS = 10

# Two processes send the file to each other; one of them, or the socket, has it at any time.
PASSING = """
import os, socket, sys
ends = socket.socketpair()
file = [os.open(sys.argv[1], os.O_PATH)]
print(flush=True)
end = ends[0] if os.fork() else ends[1]
if end is ends[1]:
    os.close(file.pop())
while True:
    for fd in file:
        socket.send_fds(end, [b"x"], [fd])
        os.close(fd)
    file = socket.recv_fds(end, 1, 1)[1]
"""

# A process has a thread that has the file, and its first thread ends.
ENDING_THREAD = """
import ctypes, os, sys, threading, time
libc = ctypes.CDLL(None)
ready = threading.Event()
def keep():
    os.open(sys.argv[1], os.O_PATH)
    ready.set()
    time.sleep(600)
threading.Thread(target=keep, daemon=True).start()
ready.wait()
threading.Timer(0.3, lambda: print(flush=True)).start()
libc.pthread_exit(None)
"""
LATER_THREAD = f"import os, time\nif os.fork():\n    time.sleep(600)\n{ENDING_THREAD}"  # a child of the first process

HOLDING = """
import os, sys, time
os.open(sys.argv[1], os.O_PATH)
print(flush=True)
time.sleep(600)
"""

WAITING = """
import os, sys
print(flush=True)
os.fork()
os.mkdir(sys.argv[1] + "/x")
"""

LOOK = """
import sys
from containerhost.linux import freezer
from containerhost.linux.sysfs import Host
with freezer.frozen(freezer.Freezer(sys.argv[1]), Host(), *map(freezer.Freezer, sys.argv[2:])):
    print(flush=True)
    sys.stdin.read()
"""


def waiting(pid: int) -> int:
    """Return how many of a process and its children wait in the kernel and cannot be interrupted."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum("D (disk" in Path(f"/proc/{process}/status").read_text() for process in (pid, *children))


class UsersTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        base = Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.MockPatchObject(freezer, "LOCK", base / "frozen"))
        self.useFixture(fixtures.MockPatchObject(freezer, "GROUPS", base / "groups"))
        self.node = str(base / "node")
        os.mknod(self.node, stat.S_IFCHR | 0o600, os.makedev(*NUMBER))

    def container(self, kind: str) -> Container:
        return self.useFixture(Container(kind, IDLE))

    def users(self, first: int) -> tuple[str, ...]:
        """Search a container as for a block device."""
        return deviceusers.users_in([first], self.use)

    @staticmethod
    def use(pid: int) -> str | None:
        return deviceusers.in_words(pid) if NUMBER in openfiles.nodes(pid, stat.S_IFCHR) else None


class EscapeTest(UsersTest):
    @levels.exhaustive("chance finds it sooner or later; the release of a device does not rest on it")
    def test_process_that_forks_and_exits_is_found_each_time(self) -> None:
        for kind in hierarchies():
            with Container(kind, FORKING, self.node) as container:
                self.assertEqual((kind, []), (kind, [look for look in range(LOOKS) if not self.users(container.pid)]))
                self.assertFalse(container.is_frozen())

    @levels.exhaustive("chance finds it sooner or later; the release of a device does not rest on it")
    def test_file_that_two_processes_send_to_each_other_is_found_each_time(self) -> None:
        self.useFixture(fixtures.MockPatchObject(deviceusers, "RETRY_TIMEOUT", 0.1))
        for kind in hierarchies():
            with Container(kind, PASSING, self.node) as container:
                self.assertEqual((kind, []), (kind, [look for look in range(LOOKS) if not self.users(container.pid)]))

    def test_process_whose_first_thread_has_ended_is_the_containers(self) -> None:
        for kind in (*hierarchies(), EVERY):
            for script in (LATER_THREAD, ENDING_THREAD):
                with Container(kind, script, self.node) as container:
                    group = map(int, (container.group / "cgroup.procs").read_text().split())
                    found = {pid for pid in group if not processes.is_hosts(pid)}
                    home = processes.namespace(container.pid) or ""
                    self.assertEqual((kind, found), (kind, set(processes.members(home, container.pid))))
                    self.assertEqual((kind, True), (kind, bool(self.users(container.pid))))

    def test_process_that_entered_from_elsewhere_is_the_containers(self) -> None:
        """From the host (nsenter), or in another container's group, as Docker's ``--pid container:NAME``."""
        for kind in hierarchies():
            container = self.container(kind)
            for where in ("lxc.payload.{}", "test.{}"):
                with Container(kind, HOLDING, self.node, name=where, inside=container.pid) as other:
                    home = processes.namespace(container.pid) or ""
                    self.assertEqual((kind, True), (kind, other.pid in processes.members(home, container.pid)))
                    self.assertEqual((kind, 1), (kind, len(self.users(container.pid))))
                    if "lxc" in where:
                        self.assertIn(container.pid, processes.members(home, other.pid))

    def test_users_of_a_block_device_are_looked_at_while_frozen(self) -> None:
        for kind in hierarchies():
            container = self.container(kind)
            states: list[bool] = []

            def look(pid: int, container: Container = container, states: list[bool] = states) -> None:
                states.append(container.is_frozen())

            self.assertEqual((), deviceusers.users_in([container.pid], look))
            self.assertEqual([True], states)
            self.assertFalse(container.is_frozen())

    def test_containers_that_may_send_it_to_each_other_are_frozen_at_once(self) -> None:
        for kind in hierarchies():
            container = self.container(kind)
            with Container(kind, HOLDING, self.node) as other:
                states: list[bool] = []

                def look(pid: int, both: tuple[Container, ...] = (container, other), states: list[bool] = states
                         ) -> str | None:
                    states.extend(each.is_frozen() for each in both)
                    return self.use(pid)

                self.assertEqual((), self.users(container.pid))
                (found,) = deviceusers.users_in([container.pid, other.pid], look)
                self.assertIn(f"process {other.pid} ", found)
                self.assertEqual([True] * 4, states)
                self.assertEqual([False] * 2, [each.is_frozen() for each in (container, other)])

    def test_topmost_group_is_frozen_whatever_the_tenant_names_its_own(self) -> None:
        for kind in hierarchies():
            for name, below in (("lxc.payload.{}", ""), ("lxc.payload.{}", f"lxc.payload.x/{os.urandom(32).hex()}"),
                                (os.urandom(32).hex(), "lxc.payload.x"), (f"docker-{os.urandom(32).hex()}.scope", "")):
                with Container(kind, IDLE, name=name, below=below) as container:
                    group = freezer.of_container(container.pid, Host())
                    self.assertEqual(str(container.freeze), group.path if group else None)

    def test_host_itself_is_in_no_group_of_a_container(self) -> None:
        self.assertIsNone(freezer.of_container(1, Host()))


class HolderTest(UsersTest):
    def setUp(self) -> None:
        super().setUp()
        self.kind = next(iter(hierarchies()))

    def test_files_that_wait_in_a_socket_count_for_the_holder(self) -> None:
        self.useFixture(fixtures.MockPatchObject(deviceusers, "RETRY_TIMEOUT", 0.1))
        ends = socket.socketpair()
        self.addCleanup(lambda: [end.close() for end in ends])
        inside = self.useFixture(Container(self.kind, IDLE, stdin=ends[0].fileno())).pid
        self.assertEqual((), self.users(inside))
        with open("/dev/null", "rb") as file:
            socket.send_fds(ends[1], [b"x"], [file.fileno()])
        (user,) = self.users(inside)
        self.assertIn(f"process {inside} ", user)
        self.assertIn("by a file descriptor that waits in a socket", user)

    def test_holder_outside_every_containers_group_is_told(self) -> None:
        process = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", "sleep", "60"])
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        await_that(children.read_text, "it has a process")
        self.assertIn("cannot tell", str(self.assertRaises(HostActionFailed, self.users, int(children.read_text()))))

    def test_holder_that_has_ended_is_no_user(self) -> None:
        with Container(self.kind, IDLE) as container:
            pid = container.pid
        self.assertEqual((), self.users(pid))


class CharUsersTest(UsersTest):
    """The search for messages: nothing is frozen, and no container makes it long."""

    def users_seen(self) -> tuple[str, ...]:
        return Privileged().users([NUMBER])

    def test_process_in_a_container_is_named_and_the_hosts_own_is_not(self) -> None:
        handle = os.open(self.node, os.O_PATH)
        self.addCleanup(os.close, handle)
        self.assertEqual((), self.users_seen())
        for script in (HOLDING, ENDING_THREAD):
            with Container(next(iter(hierarchies())), script, self.node) as container:
                self.assertIn(f"process {container.pid} (", "".join(self.users_seen()))
        self.assertEqual((), self.users_seen())

    def test_what_is_not_read_in_time_is_left_out(self) -> None:
        with Container(next(iter(hierarchies())), HOLDING, self.node):
            self.assertEqual((), deviceusers.char_users([NUMBER], 0.0))

    def test_process_whose_files_cannot_be_read_is_left_out(self) -> None:
        with (Container(next(iter(hierarchies())), HOLDING, self.node),
              mock.patch("os.scandir", side_effect=OSError(errno.EMFILE, "Too many open files"))):
            self.assertEqual((), self.users_seen())


class ThawTest(UsersTest):
    def setUp(self) -> None:
        super().setUp()
        self.containers = [self.container(kind) for kind in hierarchies()]

    def look(self, container: Container) -> "subprocess.Popen[bytes]":
        """:returns: a process that looks at the frozen container until its standard input ends"""
        places = f"freezer.LOCK, freezer.GROUPS = map(Path, {(str(freezer.LOCK), str(freezer.GROUPS))!r})"
        script = f"from pathlib import Path\n{LOOK}".replace("with", f"{places}\nwith", 1)
        process = subprocess.Popen([sys.executable, "-c", script, str(container.freeze)],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(process.communicate)
        self.assertEqual(b"\n", process.stdout.readline())
        self.assertTrue(container.is_frozen())
        return process

    def thawer(self, process: "subprocess.Popen[bytes]") -> int:
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        return int(child)

    def test_container_that_its_user_froze_stays_frozen(self) -> None:
        for container in self.containers:
            container.suspend()
            self.assertEqual((), self.users(container.pid))
            self.assertTrue(container.is_frozen())
            container.thaw()

    def test_thawed_after_an_error(self) -> None:
        for container in self.containers:
            self.assertRaises(ZeroDivisionError, deviceusers.users_in, [container.pid], lambda pid: 1 // 0)
            self.assertFalse(container.is_frozen())

    def test_thawed_when_the_process_that_looks_is_killed(self) -> None:
        for container in self.containers:
            process = self.look(container)
            process.kill()
            process.wait()
            await_that(lambda container=container: not container.is_frozen(), "it is thawed")
            self.assertEqual((), self.users(container.pid))

    def test_thawed_when_what_thaws_is_killed(self) -> None:
        for container in self.containers:
            process = self.look(container)
            os.kill(self.thawer(process), signal.SIGKILL)
            process.communicate(b"")
            self.assertEqual(0, process.returncode)
            self.assertFalse(container.is_frozen())

    def test_thawed_by_the_next_look_or_start_when_both_are_killed(self) -> None:
        for container in self.containers:
            for repair in (lambda: self.users(self.containers[0].pid), Privileged().thaw_left):
                process = self.look(container)
                thawer = self.thawer(process)
                os.kill(thawer, signal.SIGKILL)
                process.kill()
                process.wait()
                self.assertTrue(container.is_frozen())
                repair()
                self.assertFalse(container.is_frozen())

    def test_thawed_in_time_though_the_look_does_not_end(self) -> None:
        self.useFixture(fixtures.MockPatchObject(freezer, "FROZEN_TIMEOUT", 0.3))
        for container in self.containers:
            group = freezer.of_container(container.pid, Host())
            error = self.assertRaises(HostActionFailed, self.wait_frozen, group, container)
            self.assertIn("thawed while", str(error))

    def wait_frozen(self, group: freezer.Freezer, container: Container) -> None:
        with freezer.frozen(group, Host()):
            await_that(lambda: not container.is_frozen(), "it is thawed")

    def test_look_is_repeated_if_the_container_ran_meanwhile(self) -> None:
        self.useFixture(fixtures.MockPatchObject(deviceusers, "RETRY_TIMEOUT", 0.2))
        for container in self.containers:
            looks: list[int] = []

            def look(pid: int, container: Container = container, looks: list[int] = looks) -> None:
                looks.append(pid)
                if len(looks) == 1:
                    container.thaw()
                    await_that(lambda: not freezer.Freezer(str(container.freeze)).is_frozen(Host()), "it runs")

            self.assertEqual((), deviceusers.users_in([container.pid], look))
            self.assertEqual([container.pid] * 2, looks)
            self.assertFalse(container.is_frozen())

    def test_all_are_thawed_though_one_cannot_be(self) -> None:
        """A directory in place of its file can be neither written nor frozen."""
        freezer.LOCK.touch()
        for container in self.containers:
            container.suspend()
            freezer.LOCK.write_text(f"{freezer.LOCK.parent}\n{container.freeze}")
            self.assertIn("failed", str(self.assertRaises(HostActionFailed, Privileged().thaw_left)))
            self.assertFalse(container.is_frozen())
            self.assertEqual(str(freezer.LOCK.parent), freezer.LOCK.read_text())

    def test_what_thaws_leaves_only_what_it_could_not(self) -> None:
        group = freezer.LOCK.with_name("freezer.state")
        group.touch()
        absent = group.parent / "absent/freezer.state"
        for path, left in ((group, ""), (absent, str(absent))):
            freezer.LOCK.write_text(str(path))
            subprocess.run(["sh", "-c", freezer.THAW, "thaw", "10", freezer.LOCK, "THAWED", path], input=b"",
                           capture_output=True, check=False)
            self.assertEqual(left, freezer.LOCK.read_text())
        self.assertEqual("THAWED\n", group.read_text())

    def test_lock_of_a_tenant_on_its_own_group_hinders_no_look(self) -> None:
        for container in self.containers:
            with closing(os.open(container.group, os.O_RDONLY)) as directory:
                fcntl.flock(directory, fcntl.LOCK_EX)
                self.assertEqual((), self.users(container.pid))

    def test_second_look_waits_for_the_first(self) -> None:
        self.useFixture(fixtures.MockPatchObject(freezer, "LOCK_TIMEOUT", 0.2))
        for container in self.containers:
            process = self.look(container)
            self.assertIn("locked", str(self.assertRaises(HostActionFailed, self.users, container.pid)))
            self.assertTrue(container.is_frozen())
            process.communicate(b"")
            self.assertEqual((), self.users(container.pid))

    def test_container_that_ends_while_it_is_frozen(self) -> None:
        """Version 1 kills a frozen process only once it is thawed."""
        kinds = [kind for kind in hierarchies() if kind != "v1"]
        for kind in kinds:
            with Container(kind, IDLE) as container:
                group = freezer.Freezer(str(container.freeze))
                with freezer.frozen(group, Host()):
                    container.end()
                self.assertFalse(container.group.exists())


class UninterruptibleTest(UsersTest):
    def test_process_that_waits_in_the_kernel_does_not_hang_the_look(self) -> None:
        """It waits for the lock of a directory, held by one that waits for a file system's process."""
        self.useFixture(fixtures.MockPatchObject(freezer, "FREEZE_TIMEOUT", 0.5))
        directory = self.useFixture(SilentFuse()).directory
        for kind in hierarchies():
            with Container(kind, WAITING, directory) as container:
                await_that(lambda pid=container.pid: waiting(pid) == 2, "they wait in the kernel")
                error = self.assertRaises(HostActionFailed, self.users, container.pid)
                self.assertIn("cannot be frozen within 0.5 s", str(error))
                self.assertFalse(container.is_frozen())
