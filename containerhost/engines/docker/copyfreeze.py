# SPDX-License-Identifier: Apache-2.0
"""Freeze a running container while its root is copied.

The kernel freezes its control group, without Docker's knowledge. So a container that is frozen but running for
Docker was not suspended, and may be thawed whatever was killed or restarted. Docker's own freeze would outlive a
killed process.

A separate process freezes it, and thaws it when its standard input ends, also because the copying process was
killed.

    python -m containerhost.engines.docker.copyfreeze CONTAINER
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import Final

from containerhost.engines.docker import frozen
from containerhost.errors import ContainerHostError, EngineError, HostActionFailed
from containerhost.linux.freezer import POLL_INTERVAL, Freezer
from containerhost.linux.poll import wait_until
from containerhost.linux.run import HELD, holding, release
from containerhost.linux.sysfs import Host

FREEZE_TIMEOUT: Final = 10.0  # s
LOCK_TIMEOUT: Final = 10.0  # s; a helper whose parent was killed thaws at once
START_TIMEOUT: Final = FREEZE_TIMEOUT + LOCK_TIMEOUT + 10  # s


@contextlib.contextmanager
def still(container: str) -> Iterator[None]:
    """Freeze all processes of a container within the block.

    :param container: Docker's id of one that runs
    :raises HostActionFailed: it cannot be frozen
    :raises EngineError: it was thawed before the block ended
    """
    what = f"container {container[:12]}"
    with holding(command(container), what, START_TIMEOUT, "a process of it does not stop") as process:
        try:
            yield
        finally:
            status = release(process)
            if status:
                thaw_abandoned(container)
    if status:
        raise EngineError(f"{what} ran, or ended, while its root was copied: try again")


def command(container: str) -> list[str]:
    return [sys.executable, "-m", __name__, container]


def thaw_abandoned(container: str) -> None:
    """Thaw a container whose freezing process was killed. Idempotent."""
    host = Host()
    with frozen.locked(host, container, LOCK_TIMEOUT):
        group = frozen.freezer(host, container)
        if group and group.is_requested(host):
            group.thaw()


def main(container: str) -> int:
    """Freeze a container while standard input is open.

    :returns: the exit status: 1 if it could not be frozen, or did not stay frozen
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    host = Host()
    try:
        with frozen.locked(host, container, LOCK_TIMEOUT):
            return 0 if hold(host, container) else 1
    except ContainerHostError as error:
        print(error)
        return 1


def hold(host: Host, container: str) -> bool:
    """Freeze the container until standard input ends.

    :returns: whether it stayed frozen
    """
    group = frozen.freezer(host, container)
    if group is None:
        raise HostActionFailed("it does not run")
    try:
        freeze(host, group)
        os.write(1, HELD)
        os.read(0, 1)
        return frozen.is_frozen(host, container)
    finally:
        group.thaw()


def freeze(host: Host, group: Freezer) -> None:
    """Freeze the container, repeating until it holds: version 1 may miss processes that start meanwhile."""
    def is_frozen() -> bool:
        group.freeze()
        return group.is_frozen(host)

    if not wait_until(is_frozen, FREEZE_TIMEOUT, POLL_INTERVAL):
        raise HostActionFailed(f"a process of it does not stop within {FREEZE_TIMEOUT:g} s")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
