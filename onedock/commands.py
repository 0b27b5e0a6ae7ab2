# SPDX-License-Identifier: Apache-2.0
"""Programs that this driver's file work needs, each with a limit, none through a shell."""

import os
import shutil
import subprocess
from collections.abc import Sequence

from containerhost.process.programs import not_run
from onedriver.errors import DriverError

LIMIT = 600  # seconds; a file system on a large disk takes its time


def run(words: Sequence[str], problem: str, limit: int = LIMIT, inherited: Sequence[int] = ()) -> str:
    """:param inherited: file descriptors that the program has too: what they hold lasts as long as it, also where this
        process is killed
    :returns: what it printed
    :raises DriverError: it is not there or failed; the message begins with ``problem``
    """
    program = found(words[0])
    if program is None:
        raise DriverError(f"{problem}: {not_run(words[0], FileNotFoundError())}")
    try:
        done = subprocess.run([program, *words[1:]], capture_output=True, text=True, errors="replace", timeout=limit,
                              check=False, stdin=subprocess.DEVNULL, pass_fds=inherited)
    except subprocess.TimeoutExpired as error:
        raise DriverError(f"{problem}: `{words[0]}` did not end within {limit} s") from error
    if done.returncode != 0:
        raise DriverError(f"{problem}: {' '.join((done.stderr or done.stdout).split())[:300]}")
    return done.stdout


def found(program: str) -> str | None:
    """Return its path, also in the folders of file system tools, which are not on every user's path."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
