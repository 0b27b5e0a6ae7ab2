# SPDX-License-Identifier: Apache-2.0
"""Programs that hold something until their standard input ends, so also when the process that started them is killed.

They print :data:`HELD` once they hold it, and otherwise the reason why they do not.
"""

import contextlib
import select
import subprocess
from collections.abc import Iterator, Sequence
from typing import BinaryIO, cast

from containerhost.errors import HostActionFailed

HELD = b"frozen\n"


@contextlib.contextmanager
def started(command: Sequence[str], what: str, timeout: float, late: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Start the program and wait until it holds; the end of the block closes its standard input.

    :param what: what it freezes, for people
    :param timeout: seconds until it must hold
    :param late: the reason if it does not by then
    :raises HostActionFailed: it does not hold
    """
    # No `with`: one that waits in the kernel is not waited for.
    process = subprocess.Popen(command, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, start_new_session=True)
    stdin, stdout = cast("BinaryIO", process.stdin), cast("BinaryIO", process.stdout)
    with stdout, stdin:
        if not select.select([stdout], [], [], timeout)[0]:
            raise HostActionFailed(f"{what} cannot be frozen within {timeout:g} s: {late}")
        answer = stdout.readline()
        if answer != HELD:
            process.wait()
            raise HostActionFailed(f"{what} cannot be frozen: {answer.decode(errors='replace').strip() or 'killed'}")
        yield process


def end(process: "subprocess.Popen[bytes]") -> int:
    """Let the program go, and wait until it has ended.

    :returns: its exit status
    """
    cast("BinaryIO", process.stdin).close()
    return process.wait()
