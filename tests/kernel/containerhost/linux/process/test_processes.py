# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import fixtures
import testtools

from containerhost.linux.process import processes
from containerhost.linux.process.leakybucket import LeakyBuckets
from tests.waiting import await_that


class TestProcesses(testtools.TestCase):
    def test_a_process_is_told_from_a_later_one_of_its_number(self) -> None:
        child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
        born = processes.began(child.pid)
        self.assertGreaterEqual(born, processes.began(os.getpid()))
        self.assertEqual(born, processes.began(child.pid))
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        self.assertIsNone(processes.began(child.pid))  # it has ended, and is a zombie
        child.wait()
        self.assertIsNone(processes.began(child.pid))


class AskedTest(testtools.TestCase):
    """Processes of a PID namespace of their own, as a container's are."""

    MANY_GROUPS = "import os, time; os.setgroups(range(65536)); print(flush=True); time.sleep(600)"

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.MockPatchObject(processes, "_waiting", {}))
        self.useFixture(fixtures.MockPatchObject(processes, "_buckets", LeakyBuckets(1, 1 / 60)))
        self.useFixture(fixtures.MockPatchObject(processes, "ANSWER_TIMEOUT", 0.2))

    def contained(self) -> int:
        process = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c",
                                    self.MANY_GROUPS], stdout=subprocess.PIPE)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        process.stdout.readline()
        return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())

    def test_whose_process_it_is(self) -> None:
        self.assertEqual([True, True, False],
                         [processes.is_hosts(pid) for pid in (os.getpid(), 0x7FFFFFFF, self.contained())])

    def test_who_does_not_answer_is_not_asked_again_meanwhile(self) -> None:
        one, other = self.contained(), self.contained()
        over = threading.Event()
        self.addCleanup(over.set)
        error = self.assertRaises(processes.ProcReadTimeout, processes.read_with_timeout, one, over.wait, 0.1)
        self.assertIn(f"process {one} (python", str(error))
        self.assertRaises(processes.ProcReadTimeout, processes.namespace, one)
        self.assertEqual((True, True), (processes.runs(one), processes.is_still(one, 1)))
        home = processes.namespace(other)
        self.assertEqual([other], list(processes.alone(home, other)))
        self.assertEqual([other], list(processes.members(home, other)))
        self.assertRaises(processes.ProcReadTimeout, list, processes.members("pid:[1]", one))
        over.set()
        await_that(processes._waiting[f"process {one}"].done, "it has answered")
        self.assertNotEqual(home, processes.namespace(one))

    def test_who_takes_long_to_answer_is_not_asked_for_ever(self) -> None:
        one = self.contained()
        for _ in range(20):
            try:
                processes.read_with_timeout(one, lambda: time.sleep(0.15))
            except processes.ProcReadTimeout:
                break
        else:
            self.fail("it was asked again and again")
        self.assertIsNotNone(processes.namespace(self.contained()))

    def test_what_takes_its_time_to_read_a_lot_does_not_count(self) -> None:
        one = self.contained()
        for _ in range(10):
            processes.read_with_timeout(one, lambda: time.sleep(0.15), counted=False)
        self.assertIsNotNone(processes.namespace(one))

    def test_groups_of_a_process_do_not_make_the_question_long(self) -> None:
        one = self.contained()
        begin = time.process_time()
        for _ in range(100):
            processes.is_hosts(one)
        few = time.process_time() - begin
        begin = time.process_time()
        for _ in range(100):
            Path(f"/proc/{one}/status").read_bytes()
        self.assertLess(few, (time.process_time() - begin) / 2)

    def test_what_it_raises_is_raised(self) -> None:
        self.assertRaises(ZeroDivisionError, processes.read_with_timeout, self.contained(), lambda: 1 // 0)
