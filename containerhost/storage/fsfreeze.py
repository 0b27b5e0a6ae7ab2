"""Freeze a mounted file system while its disk is copied.

A process of its own freezes and thaws it. It thaws when its standard input ends, so also when the process that copies
is killed. Where a tenant's write does not end (its buffer may be on a file system that the tenant serves itself), the
kernel does not freeze: that process alone waits then, in the kernel, and thaws at once when it gets there.

    python -m containerhost.storage.fsfreeze FOLDER SECONDS
"""

import contextlib
import errno
import fcntl
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from containerhost.errors import HostActionFailed
from containerhost.storage.mountedfs import FREEZE, THAW

FREEZE_TIMEOUT = 30.0  # s
FROZEN = b"frozen\n"
LATE = 3  # exit status: it was thawed before its standard input ended


@contextlib.contextmanager
def frozen(folder: Path, timeout: float) -> Iterator[None]:
    """Let all that was written be on the disk, whole and clean, and let writers wait for as long as the block lasts.

    A file system that is frozen already, as one whose freezing process was killed, is thawed afterwards.

    :param folder: where it is mounted
    :param timeout: seconds after which it is thawed even if the block has not ended
    :raises HostActionFailed: it cannot be frozen, or was thawed before the block ended
    """
    with contextlib.ExitStack() as stack:
        # No `with`: one that waits in the kernel is not waited for.
        process = subprocess.Popen(command(folder, timeout), cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, start_new_session=True)
        stdin, stdout = cast("BinaryIO", process.stdin), cast("BinaryIO", process.stdout)
        stack.enter_context(stdout)
        stack.enter_context(stdin)
        if not select.select([stdout], [], [], FREEZE_TIMEOUT)[0]:
            raise HostActionFailed(f"{folder} cannot be frozen within {FREEZE_TIMEOUT:g} s: a program's write to it "
                                   "does not end")
        answer = stdout.readline()
        if answer != FROZEN:
            process.wait()
            raise HostActionFailed(f"{folder} cannot be frozen: {answer.decode(errors='replace').strip() or 'killed'}")
        yield
        stdin.close()
        if process.wait():
            raise HostActionFailed(f"{folder} was thawed before its disk was copied: that took more than {timeout:g} "
                                   "s")


def command(folder: Path, timeout: float) -> list[str]:
    return [sys.executable, "-m", __name__, str(folder), f"{timeout:g}"]


def main(folder: str, timeout: str) -> int:
    """:returns: the exit status"""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(handle, FREEZE, 0)
    except OSError as error:
        if error.errno != errno.EBUSY:  # frozen already
            print(error.strerror)
            return 1
    try:
        os.write(1, FROZEN)
        return 0 if select.select([0], [], [], float(timeout))[0] else LATE
    finally:
        fcntl.ioctl(handle, THAW, 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
