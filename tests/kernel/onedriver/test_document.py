# SPDX-License-Identifier: Apache-2.0
import resource
import subprocess
import sys

import testtools


class InputTest(testtools.TestCase):
    def test_no_command_reads_without_an_end(self) -> None:
        for module, words in (("lxdone", ["vmm", "deploy"]), ("onedock", ["vmm", "deploy"]),
                              ("onedock", ["datastore", "stat", "1"])):
            with open("/dev/zero", "rb") as endless:
                done = subprocess.run([sys.executable, "-m", module, *words, "f", "h", "1", "h"], stdin=endless,
                                      capture_output=True, text=True, timeout=60, check=False,
                                      preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)))
            self.assertIn("standard input has more than 12 MiB", done.stderr)
            self.assertNotIn("mistake", done.stderr)
