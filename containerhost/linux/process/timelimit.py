# SPDX-License-Identifier: Apache-2.0
"""Call functions that have no timeout with one, each in a thread of its own.

Neither a storage backend that is gone nor a tenant's process may hold a lock for ever. A thread that is left to itself
keeps its process if the kernel lets no signal end it.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

R = TypeVar("R")


class StillRunning(TimeoutError):
    """Signal that a call exceeded its time limit and goes on in its thread.

    :ivar call: ends when the call does
    """

    def __init__(self, message: str, call: Future[Any]) -> None:
        super().__init__(message)
        self.call = call


def within(timeout: float | None, what: str, function: Callable[[], R]) -> R:
    """Call ``function`` in a thread of its own, and return its result.

    :param timeout: seconds; None waits to the end
    :param what: the thread's name
    :raises StillRunning: the call goes on in its thread, which does not hold up the end of the process
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
