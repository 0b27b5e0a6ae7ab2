# SPDX-License-Identifier: Apache-2.0
"""A process of some container that has a device's node open."""

import subprocess
import sys

import fixtures

from containerhost.linux.poll import wait_until
from containerhost.privileged import Privileged

# Emulated nodes have no driver behind them: only a handle on the node itself can be had.
_HOLD = "import os, sys, time; os.open(sys.argv[1], os.O_PATH); time.sleep(600)"
TIMEOUT = 20  # s


class Holder(fixtures.Fixture):
    """:param path, number: of the node
    :ivar users: it, in the words of :meth:`Privileged.users`
    """

    def __init__(self, path: str, number: tuple[int, int]) -> None:
        self._path = path
        self._number = number

    def _setUp(self) -> None:
        self._process = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", _HOLD,
                                          self._path])
        self.addCleanup(self.end)
        if not wait_until(lambda: Privileged().users([self._number]), TIMEOUT):
            raise TimeoutError(f"nobody has {self._path} open")
        self.users = Privileged().users([self._number])

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        if not wait_until(lambda: not Privileged().users([self._number]), TIMEOUT):
            raise TimeoutError(f"somebody still has {self._path} open")
