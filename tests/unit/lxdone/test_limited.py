# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

import testtools

from lxdone.disk.limited import confined

THREADS = 64  # of qemu-img, at most
TRIED = f"""
import ctypes, threading
malloc, all_run = ctypes.CDLL(None).malloc, threading.Barrier({THREADS} + 1, timeout=20)

def run():
    malloc(ctypes.c_size_t(5000))
    all_run.wait()

for _ in range({THREADS}):
    threading.Thread(target=run, daemon=True).start()
all_run.wait()
"""


class ConfinedTest(testtools.TestCase):
    def test_a_program_has_room_for_its_threads_whatever_processors_there_are(self) -> None:
        done = subprocess.run([*confined(20), sys.executable, "-c", TRIED], capture_output=True, text=True,
                              check=False, timeout=60)
        self.assertEqual((0, ""), (done.returncode, done.stderr))
