# SPDX-License-Identifier: Apache-2.0
import os
import secrets
import subprocess
import time
from pathlib import Path

import testtools

from containerhost.linux.process import commandtree, processes
from tests.waiting import await_that

MARK = secrets.token_hex(16)
# Below it; in a session of its own; without its environment too; without a parent that is left.
TREE = "sleep 1001 & setsid sleep 1002 & env -i setsid sleep 1003 & (sleep 1004 &); wait"


class CommandTreeTest(testtools.TestCase):
    def begun(self, script: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(["sh", "-c", script], start_new_session=True,
                                   env=os.environ | {commandtree.MARK: MARK})
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def members(self, first: int) -> frozenset[int]:
        return commandtree.members(commandtree.places(str(processes.namespace(os.getpid())), os.getpid()), first, MARK)

    def test_all_that_a_command_began_ends_and_nothing_else(self) -> None:
        first = self.begun(TREE)
        await_that(lambda: len(self.members(first.pid)) == 5, "they run")
        beside = subprocess.Popen(["sleep", "1006"])
        self.addCleanup(beside.wait)
        self.addCleanup(beside.kill)
        before = self.members(first.pid)
        commandtree.end(os.getpid(), first.pid, MARK)
        self.assertEqual(frozenset(), self.members(first.pid))
        self.assertEqual([], [pid for pid in before if commandtree.place(pid)])
        self.assertIsNone(beside.poll())

    def test_one_whose_number_is_not_known(self) -> None:
        first = self.begun("exec sleep 1001")
        await_that(lambda: MARK.encode() in Path(f"/proc/{first.pid}/environ").read_bytes(), "it runs")
        commandtree.end(os.getpid(), 0, MARK)
        self.assertEqual(-9, first.wait(timeout=10))

    def test_a_container_that_has_ended_has_none(self) -> None:
        process = subprocess.Popen(["true"])
        process.wait()
        begin = time.monotonic()
        commandtree.end(process.pid, 1, MARK)
        self.assertLess(time.monotonic() - begin, commandtree.TIMEOUT)
