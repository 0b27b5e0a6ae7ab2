# SPDX-License-Identifier: Apache-2.0
"""Call functions without a timeout of their own, each in a separate thread with one.

Neither an unreachable storage backend nor a tenant's process may hold a lock forever. An abandoned thread keeps its
process alive if no signal can end its wait in the kernel.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

R = TypeVar("R")


class StillRunning(TimeoutError):
    """Signal that a call exceeded its time limit and continues in its thread.

    :ivar call: ends when the call does
    """

    def __init__(self, message: str, call: Future[Any]) -> None:
        super().__init__(message)
        self.call = call


def within(timeout: float | None, what: str, function: Callable[[], R]) -> R:
    """Call ``function`` in a separate thread, and return its result.

    :param timeout: seconds; None waits to the end
    :param what: the thread's name
    :raises StillRunning: the call continues in its thread, which does not delay the end of the process
    """
    done: Future[R] = Future()
    threading.Thread(target=_run, args=(done, function), name=what, daemon=True).start()
    try:
        return done.result(timeout)
    except TimeoutError as error:
        if done.done():
            # The call itself ran out of some time of its own.
            return done.result()
        raise StillRunning(f"not done within {timeout:g} s", done) from error


def _run(done: Future[R], function: Callable[[], R]) -> None:
    try:
        result = function()
    except BaseException as error:
        done.set_exception(error)
    else:
        done.set_result(result)
