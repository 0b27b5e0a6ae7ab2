# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys

import testtools

from containerhost.process import processes


class TestProcesses(testtools.TestCase):
    def test_a_process_is_told_from_a_later_one_of_its_number(self) -> None:
        child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
        born = processes.began(child.pid)
        self.assertGreaterEqual(born, processes.began(os.getpid()))
        self.assertEqual(born, processes.began(child.pid))
        self.assertEqual(os.getpid(), processes.parent(child.pid))
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        self.assertIsNone(processes.began(child.pid))  # it has ended, though nobody has waited for it
        child.wait()
        self.assertIsNone(processes.began(child.pid))
        self.assertIsNone(processes.parent(child.pid))
