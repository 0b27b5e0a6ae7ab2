# SPDX-License-Identifier: Apache-2.0
"""Run tar between two streams."""

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from typing import BinaryIO

from containerhost.linux.run import start, words
from onedriver.errors import DriverError
from onedriver.node import pipes

CHUNK = 1 << 16  # bytes


def tar(arguments: list[str], problem: str, source: BinaryIO | None = None, out: BinaryIO | None = None,
        inherited: Sequence[int] = ()) -> None:
    """Run tar between two streams; raise DriverError with its output if it fails, or if a stream stalls."""
    with tempfile.TemporaryFile() as complaints:
        # No `with`: its exit would wait for a program in state D.
        process = start(["tar", "--file", "-", *arguments], problem, DriverError, bufsize=0, stderr=complaints,
                        stdin=subprocess.PIPE if source else subprocess.DEVNULL,
                        stdout=subprocess.PIPE if out else subprocess.DEVNULL, pass_fds=inherited)
        try:
            if source and process.stdin:
                with contextlib.suppress(BrokenPipeError), pipes.writer(process.stdin, problem) as sink:
                    shutil.copyfileobj(source, sink, CHUNK)
            if out and process.stdout:
                with pipes.reader(process.stdout, problem) as content:
                    shutil.copyfileobj(content, out, CHUNK)
            status = process.wait(pipes.STALL_TIMEOUT)
        except subprocess.TimeoutExpired as error:
            raise DriverError(f"{problem}: tar does not end; does the storage hang?") from error
        finally:
            process.kill()
        if status:
            raise DriverError(f"{problem}: {words(complaints) or f'tar ended with status {status}'}")
