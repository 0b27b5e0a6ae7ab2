# SPDX-License-Identifier: Apache-2.0
"""Limit the time and the memory of an action on the front-end: tenants choose images and servers."""

import contextlib
import resource
import signal
from collections.abc import Iterator
from types import FrameType

from onedock.datastore.room import mib
from onedriver.errors import BadInput, DriverError

DESCRIPTIONS = 5 * 60  # seconds in which a server or an archive tells what an image is
TRANSFER = 2 * 3600  # seconds in which an image is taken in; 100 GiB come at 15 MB/s
MEMORY = 2 << 30  # bytes of data (RLIMIT_DATA), also of each program that the action starts


class TooSlow(DriverError):
    """Signal that an image takes longer than an action may."""


class TooMuchMemory(BadInput):
    """Signal that an image takes more memory than an action may have."""


@contextlib.contextmanager
def within(seconds: float, path: str) -> Iterator[None]:
    """Limit the duration of the block by an alarm, which also interrupts reads. For the main thread only.

    A slow server could extend even the headers of one answer for years.

    :param path: of the requested image
    :raises TooSlow: the time has expired
    """
    def end(_number: int, _frame: FrameType | None) -> None:
        raise TooSlow(f"{path[:300]} was not fetched completely within {seconds:g} seconds, the limit, and was "
                      "discarded. Try again when its server is faster, or put the image "
                      "into a directory of the front-end that SAFE_DIRS names")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def confined() -> Iterator[None]:
    """Limit the memory of this process permanently; raise TooMuchMemory if the block exceeds it."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    most = MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    try:
        yield
    except MemoryError as error:
        raise TooMuchMemory(f"reading the image takes more than {mib(most)} of memory, more than an image from "
                            "docker save or skopeo needs; create it again. It was discarded") from error
