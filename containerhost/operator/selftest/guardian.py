# SPDX-License-Identifier: Apache-2.0
"""Clean up after a killed or interrupted process."""

import contextlib
import os
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def cleaned_if_killed(clean: Callable[[], object]) -> Iterator[None]:
    """Let a child process call ``clean`` if this process is killed, or fails, within the block. Not for threads.

    A failure counts because the block's own clean-up may have been interrupted. The child holds this process's locks
    until then.

    :param clean: opens its own connections
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
        os.write(writing, b".")
    finally:
        os.close(writing)
        os.waitpid(child, 0)
