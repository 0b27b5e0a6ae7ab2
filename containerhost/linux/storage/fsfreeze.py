# SPDX-License-Identifier: Apache-2.0
"""Freeze a mounted file system.

A separate process does it. If a tenant's write never ends (its buffer may be on a file system that the tenant
serves), the kernel does not freeze: then only that process waits in the kernel, at most one for each VM, and thaws
immediately afterwards. While a disk is copied it thaws when its standard input ends, also because the copying
process was killed.

    python -m containerhost.linux.storage.fsfreeze DIRECTORY SECONDS|keep
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
from contextlib import AbstractContextManager
from pathlib import Path

from containerhost.errors import HostActionFailed
from containerhost.linux.files import closing
from containerhost.linux.lock import try_lock
from containerhost.linux.run import HELD, holding, release
from containerhost.linux.storage import mountedfs
from containerhost.linux.storage.mountedfs import FREEZE, THAW

FREEZE_TIMEOUT = 30.0  # s
KEEP = "keep"
LATE = 3  # exit status: it was thawed before the end of standard input


@contextlib.contextmanager
def frozen(directory: Path, timeout: float) -> Iterator[None]:
    """Flush a file system to disk, and block writers within the block.

    A file system that is already frozen, because its freezing process was killed, is thawed afterwards.

    :param directory: where it is mounted, in a directory that only root can enter
    :param timeout: seconds after which it is thawed even if the block has not ended
    :raises HostActionFailed: it cannot be frozen, or was thawed before the block ended
    """
    with started(directory, f"{timeout:g}") as process:
        try:
            yield
        finally:
            status = release(process)
            if status not in (0, LATE):  # the helper was killed
                mountedfs.thaw(directory)
    if status:
        raise HostActionFailed(f"{directory} was thawed before its disk was copied: " + (
            f"that took more than {timeout:g} s" if status == LATE else f"the freezing process ended with status "
                                                                        f"{status}"))


def freeze(directory: Path) -> None:
    """Freeze a file system until it is explicitly thawed. Idempotent.

    :raises HostActionFailed: it cannot be frozen, and is not
    """
    with started(directory, KEEP) as process:
        release(process, FREEZE_TIMEOUT)


def started(directory: Path, how: str) -> AbstractContextManager["subprocess.Popen[bytes]"]:
    """Start the process that freezes a file system, within the block.

    :param how: seconds, or KEEP
    """
    return holding(command(directory, how), str(directory), FREEZE_TIMEOUT, "a program's write to it does not end")


def command(directory: Path, how: str) -> list[str]:
    return [sys.executable, "-m", __name__, str(directory), how]


def main(directory: str, how: str) -> int:
    """Freeze a file system while standard input is open."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if not try_lock(os.open(Path(directory).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)):
        print("an earlier command still waits until a program's write to a disk of this VM ends")
        return 1
    with closing(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        to_thaw = True
        try:
            fcntl.ioctl(fd, FREEZE, 0)
        except OSError as error:
            if error.errno != errno.EBUSY:
                print(error.strerror)
                return 1
            to_thaw = False  # the file system is frozen by another process, unless a waiting one takes over
        try:
            os.write(1, HELD)
            to_thaw = how != KEEP
            return 0 if how == KEEP or select.select([0], [], [], float(how))[0] else LATE
        finally:
            if to_thaw:
                fcntl.ioctl(fd, THAW, 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
