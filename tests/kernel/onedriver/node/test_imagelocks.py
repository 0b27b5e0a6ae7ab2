# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from pathlib import Path

from onedriver.node.imagelocks import Busy

HOLD = "import sys, pathlib\nfrom onedriver.node.imagelocks import ImageLocks\n" \
       "with ImageLocks(pathlib.Path(sys.argv[1]), 0).held('a'):\n    print('held', flush=True)\n    sys.stdin.read()\n"
from tests.unit.onedriver.node.test_imagelocks import ImageLocksCase


class ImageLocksTest(ImageLocksCase):
    def test_a_process_that_ends_lets_go(self) -> None:
        with subprocess.Popen([sys.executable, "-c", HOLD, str(self.file)], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, cwd=Path(__file__).parents[4]) as other:
            assert other.stdout
            self.assertEqual(b"held\n", other.stdout.readline())
            self.assertRaises(Busy, self.locks.held("a").__enter__)
            other.kill()
            other.wait()
            with self.locks.held("a"):
                pass
