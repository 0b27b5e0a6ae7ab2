# SPDX-License-Identifier: Apache-2.0
"""Tests that need no root and start no process, so that all of them take seconds; tests/kernel has the others."""

import re
import sys
import traceback
from typing import Any

STARTS = frozenset({"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"})


def refuse(event: str, args: tuple[Any, ...]) -> None:
    """Refuse to start a process, except where a module is loaded: ctypes runs ldconfig. PEP 578 has the events."""
    if event in STARTS and not any(frame.f_code.co_filename == "<frozen importlib._bootstrap>"
                                   for frame, _ in traceback.walk_stack(sys._getframe())):
        raise AssertionError(f"a unit test starts a process ({event} {args[:2]}): such a test belongs to tests/kernel")


# A run of other suites, which import helpers from here, starts processes.
if any(re.search(r"\btests[./]unit\b", argument) for argument in sys.argv[1:]):
    sys.addaudithook(refuse)
