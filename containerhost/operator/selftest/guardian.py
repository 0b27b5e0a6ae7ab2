# SPDX-License-Identifier: Apache-2.0
"""Clean up after a process that is killed."""

import contextlib
import os
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def cleaned_if_killed(clean: Callable[[], object]) -> Iterator[None]:
    """Let a child process call ``clean`` if this process ends within the block, as by SIGKILL. Not for threads.

    The child holds this process's locks until then.

    :param clean: makes its own connections
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setsid()  # no signal of a terminal
            os.close(writing)
            if not os.read(reading, 1):
                clean()
        finally:
            os._exit(0)
    os.close(reading)
    try:
        yield
    finally:
        os.write(writing, b".")
        os.close(writing)
        os.waitpid(child, 0)
