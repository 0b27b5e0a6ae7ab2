# SPDX-License-Identifier: Apache-2.0
"""Run something in a thread of its own, for a limited time."""

import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


class StillRunning(Exception):
    """The time is over. The thread is left to itself, and keeps its process if the kernel lets no signal end it."""

    def __init__(self, thread: threading.Thread) -> None:
        super().__init__()
        self.thread = thread


def limited(act: Callable[[], Result], timeout: float | None) -> Result:
    """Return what ``act`` returns.

    :param timeout: seconds; None waits to the end
    :raises StillRunning: they are over
    """
    results: list[Result] = []
    failures: list[Exception] = []

    def run() -> None:
        try:
            results.append(act())
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=timeout is not None)
    thread.start()
    thread.join(timeout)
    if thread.is_alive():
        raise StillRunning(thread)
    for failure in failures:
        raise failure
    return results[0]
