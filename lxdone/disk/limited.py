# SPDX-License-Identifier: Apache-2.0
"""A program that reads or writes a stream, and may not take forever."""

import contextlib
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from containerhost.process.programs import not_run
from onedriver.errors import DriverError

SAID = 1000  # bytes of its errors that are told
MEMORY = 1 << 30  # bytes of address space
CHECK_MEMORY = 4 << 30  # bytes; what checks or enlarges a file system holds maps of it
STACK = 8 << 20  # bytes of each thread's; qemu-img starts up to 64
FILES = 256  # open at once; a qcow2 disk may be made of 64


def confined(seconds: int, written: int | None = None, memory: int = MEMORY) -> Sequence[str]:
    """Return the words before a command that reads what a tenant made (setrlimit(2)).

    Its threads share one heap (``mallopt(3)``): else each one reserves 64 MiB of address space more, the sooner the
    more processors the node has, and none is left to start the next.

    :param seconds: processor time
    :param written: bytes that it may write to any file; None for as many as it likes
    :param memory: bytes of address space
    """
    size = () if written is None else (f"--fsize={written}",)
    return ("env", "MALLOC_ARENA_MAX=1", "prlimit", f"--as={memory}", f"--cpu={seconds}", f"--stack={STACK}",
            "--core=0", f"--nofile={FILES}", *size, "--")


def begun(command: Sequence[str], failure: str, **options: Any) -> subprocess.Popen[bytes]:
    """:param options: of :class:`subprocess.Popen`
    :raises DriverError: the program is missing or cannot be run
    """
    try:
        return subprocess.Popen(command, **options)
    except OSError as error:
        raise DriverError(f"{failure}: {not_run(command[0], error)}") from error


@contextlib.contextmanager
def running(command: Sequence[str], limit: int, failure: str, **options: Any) -> Iterator[None]:
    """Beside the body, whose end waits for it; one that fails ends it.

    :param limit: seconds after which it is killed
    :param failure: what it means that it failed, which begins the error
    :param options: of :class:`subprocess.Popen`
    :raises DriverError: it failed, with its words, or took too long
    """
    with tempfile.TemporaryFile() as errors, begun(command, failure, stderr=errors, **options) as process:
        clock = threading.Timer(limit, process.kill)
        clock.start()
        try:
            yield
            if process.wait() != 0:
                errors.seek(0)
                said = " ".join(errors.read(SAID).decode(errors="replace").split())
                raise DriverError(f"{failure}: {said or f'not done within {limit} s'}")
        finally:
            clock.cancel()
            process.kill()
