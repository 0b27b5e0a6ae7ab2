# SPDX-License-Identifier: Apache-2.0
"""Kill a process that calls an engine, at a step of the call.

A step is the start of a function of this project, or of the wait for a daemon's answer: the request is sent by then.
"""

import itertools
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import containerhost
from tests import levels

OURS = str(Path(containerhost.__file__).parent)
ANSWER = "getresponse"  # of http.client
POINTS = 8  # of a call, at which a process is killed
GATE = (3, 5, 7)  # of these points: in the middle, later, and at the last step


def steps(call: Callable[[], object]) -> int:
    """Do the call and return how many steps it takes."""
    counter = itertools.count()
    _watched(call, lambda: next(counter))
    return next(counter)


def spread(name: str, total: int) -> list[int]:
    """Return the steps at which to kill: the exhaustive level has the first too, and more between.

    :param name: of the test and the call in it
    """
    steps = sorted({total * point // (POINTS - 1) for point in range(POINTS - 1)} | {total - 1})
    return levels.some(name, steps, GATE)


def killed_at(step: int | None, call: Callable[[], object]) -> bool:
    """Let a process of its own do the call, and kill it at a step.

    :param step: None leaves the end to the call
    :returns: whether it was killed
    """
    counter, parent = itertools.count(), os.getpid()

    def reached() -> None:
        # Also in the child that reads a container's files.
        if next(counter) == step:
            os.kill(os.getpid() if os.getppid() == parent else os.getppid(), signal.SIGKILL)

    pid = os.fork()
    if not pid:
        try:
            _watched(call, reached)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status not in (0, -signal.SIGKILL):
        raise AssertionError(f"the call failed before it was killed at step {step}")
    return status != 0


def _watched(call: Callable[[], object], reached: Callable[[], object]) -> None:
    def look(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and (code.co_name == ANSWER or code.co_filename.startswith(OURS)):
            reached()

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
