# SPDX-License-Identifier: Apache-2.0
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest import mock

import fixtures
import testtools

from containerhost import privileged
from containerhost.errors import HostActionFailed
from containerhost.linux.process import childprocess
from containerhost.linux.process.processes import name, pids
from tests.waiting import await_that

HANGS = "import sys, time; open('/proc/self/comm', 'w').write(sys.argv[1]); print(flush=True); time.sleep(600)"


NOVA_33 = """
import eventlet
eventlet.monkey_patch()
import os, signal
from containerhost.errors import HostActionFailed
from containerhost.linux.process import childprocess
print(len(childprocess.run(os.getpid(), lambda: b"x" * 100_000, "cannot do it")))
childprocess.TIMEOUT = 0.1
try:
    childprocess.run(os.getpid(), signal.pause, "cannot do it")
except HostActionFailed as error:
    print(error)
"""


class RunTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.MockPatchObject(childprocess, "_known", set()))
        self.useFixture(fixtures.MockPatchObject(childprocess, "_left", set()))
        childprocess._children.cache_clear()
        self.container = os.getpid()

    def run_in_child(self, act, **options):
        return childprocess.run(self.container, act, "cannot do it", **options)

    def children(self) -> list[int]:
        return [pid for pid in pids() if name(pid) == f"guest-{self.container}"]

    def test_what_it_returns_comes_from_another_process(self) -> None:
        self.assertNotEqual(os.getpid(), self.run_in_child(os.getpid))
        self.assertEqual(b"x" * 1_000_000, self.run_in_child(lambda: b"x" * 1_000_000))
        self.assertEqual([], self.children())

    def test_what_it_raises_is_raised(self) -> None:
        absent = f"{self.useFixture(fixtures.TempDir()).path}/absent"
        error = self.assertRaises(HostActionFailed, self.run_in_child, lambda: os.stat(absent))
        self.assertEqual("cannot do it: No such file or directory", str(error))
        self.assertIsInstance(error.__cause__, FileNotFoundError)
        self.assertRaises(ZeroDivisionError, self.run_in_child, lambda: 1 // 0)

    def test_child_that_ends_without_an_answer(self) -> None:
        error = self.assertRaises(HostActionFailed, self.run_in_child, lambda: os.kill(os.getpid(), signal.SIGKILL))
        self.assertEqual("cannot do it: the process that does it was ended", str(error))

    def test_host_that_makes_no_process(self) -> None:
        for call, refusal in (("os.pipe", OSError(24, "Too many files")), ("os.fork", OSError(11, "Busy"))):
            before = os.listdir("/proc/self/fd")
            with mock.patch(call, side_effect=refusal):
                error = self.assertRaises(HostActionFailed, self.run_in_child, os.getpid)
            self.assertEqual(f"cannot do it: the host cannot create a process: {refusal.strerror}", str(error))
            self.assertEqual(before, os.listdir("/proc/self/fd"))

    def test_child_has_no_file_of_its_parents(self) -> None:
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        self.addCleanup(os.close, writer)
        kept = self.run_in_child(lambda: [os.readlink(f"/proc/self/fd/{fd}") for fd in (0, 1, 2, reader)],
                                 keep=(reader,))
        self.assertEqual([os.devnull] * 3 + [os.readlink(f"/proc/self/fd/{reader}")], kept)
        error = self.assertRaises(HostActionFailed, self.run_in_child, lambda: os.fstat(writer), keep=(reader,))
        self.assertIn("Bad file descriptor", str(error))

    def test_time_is_limited_and_the_child_is_ended(self) -> None:
        self.useFixture(fixtures.MockPatchObject(childprocess, "TIMEOUT", 0.1))
        error = self.assertRaises(HostActionFailed, self.run_in_child, signal.pause)
        self.assertEqual("cannot do it: not done within 0.1 s", str(error))
        self.assertEqual([], self.children())

    def test_threads_of_eventlet(self) -> None:
        """As nova-compute of nova 33 has them: ``select`` has no ``poll`` there."""
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", NOVA_33], capture_output=True, text=True,
                              check=False)
        self.assertEqual(("100000\ncannot do it: not done within 0.1 s\n", ""), (done.stdout, done.stderr))

    def test_child_of_another_process_that_waits_is_known(self) -> None:
        self.useFixture(fixtures.MockPatchObject(childprocess, "TIMEOUT", 0.1))
        other = subprocess.Popen([sys.executable, "-c", HANGS, f"guest-{self.container}"], stdout=subprocess.PIPE)
        self.addCleanup(other.communicate)
        self.addCleanup(other.kill)
        other.stdout.readline()
        time.sleep(0.2)
        error = self.assertRaises(HostActionFailed, self.run_in_child, os.getpid)
        self.assertIn(f"the host's process {other.pid} waits for the container", str(error))
        other.kill()
        await_that(lambda: name(other.pid) != f"guest-{self.container}" or other.poll() is not None, "it has ended")
        self.run_in_child(os.getpid)

    def test_hosts_processes_are_read_once_for_many_containers(self) -> None:
        self.useFixture(fixtures.MockPatchObject(childprocess, "TIMEOUT", 0.1))
        time.sleep(0.2)  # so that a child may be late
        read = self.useFixture(fixtures.MockPatchObject(childprocess, "pids", side_effect=pids)).mock
        second = time.monotonic()
        for _ in range(3):
            childprocess._known.clear()
            with mock.patch.object(time, "monotonic", return_value=second):
                childprocess._require_none_waits(self.container, "cannot do it")
        self.assertEqual(1, read.call_count)

    def test_many_threads_at_once(self) -> None:
        found: list[int] = []
        threads = [threading.Thread(target=lambda: found.append(self.run_in_child(os.getpid))) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(20, len(set(found)))


class DeviceTest(testtools.TestCase):
    ADDRESS = "0000:3b:00.0"

    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.MockPatchObject(privileged, "PCI", str(self.directory)))
        (self.directory / "drivers/mlx5_core").mkdir(parents=True)
        (self.directory / f"devices/{self.ADDRESS}").mkdir(parents=True)
        self.files = [self.directory / "drivers/mlx5_core/unbind", self.directory / "drivers/mlx5_core/bind",
                      self.directory / f"devices/{self.ADDRESS}/reset"]
        root = privileged.Privileged()
        self.acts = [lambda: root.unbind(self.ADDRESS, "mlx5_core"), lambda: root.bind(self.ADDRESS, "mlx5_core"),
                     lambda: root.reset(self.ADDRESS)]

    def test_what_is_written_arrives(self) -> None:
        for file, act, text in zip(self.files, self.acts, (self.ADDRESS, self.ADDRESS, "1"), strict=True):
            file.touch()
            act()
            self.assertEqual(text, file.read_text())

    def test_refusal_is_told_in_the_kernels_words(self) -> None:
        error = self.assertRaises(HostActionFailed, self.acts[0])
        self.assertIn("unbind failed: No such file or directory", str(error))

    def test_driver_that_hangs_holds_nobody(self) -> None:
        self.useFixture(fixtures.MockPatchObject(privileged, "DRIVER_TIMEOUT", 0.1))
        for file, act in zip(self.files, self.acts, strict=True):
            os.mkfifo(file)  # without a reader, the write blocks
            error = self.assertRaises(HostActionFailed, act)
            self.assertIn("not done within 0.1 s", str(error))

    def test_device_is_left_alone_while_an_earlier_write_waits(self) -> None:
        self.useFixture(fixtures.MockPatchObject(privileged, "DRIVER_TIMEOUT", 0.1))
        other = subprocess.Popen([sys.executable, "-c", HANGS, f"d-{self.ADDRESS}"], stdout=subprocess.PIPE)
        self.addCleanup(other.communicate)
        self.addCleanup(other.kill)
        other.stdout.readline()
        time.sleep(0.2)
        self.files[2].touch()
        error = self.assertRaises(HostActionFailed, self.acts[2])
        self.assertIn(f"process {other.pid} waits for the device's driver", str(error))
        self.assertEqual("", self.files[2].read_text())
