# SPDX-License-Identifier: Apache-2.0
"""Count acquisitions and releases of devices on this host, with their durations and results.

The counts are those of all processes, also of actions that live for a second, so they are kept in a file beside the
allocation records, for monitoring. They only grow; a lost or unreadable file restarts them from zero. Operations of
a killed process are not counted. A count that cannot be written is only logged.
"""

import contextlib
import dataclasses
import enum
import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from containerhost.allocation.store import Consumer
from containerhost.errors import ContainerHostError, HostActionFailed, ScrubFailed
from containerhost.linux import records
from containerhost.linux.files import Directory
from containerhost.linux.lock import FileLock

LOG = logging.getLogger(__name__)
FILE, _LOCK = ".timings", ".timings.lock"
LOCK_TIMEOUT = 5.0  # seconds; a holder writes one small file
VERSION = 1
BOUNDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)  # seconds: upper bounds of the histogram


class Operation(enum.StrEnum):
    ACQUIRE = "acquire"
    RELEASE = "release"


class Result(enum.StrEnum):
    """Classify how an acquisition or release of devices ended.

    :cvar REFUSED: the request could not be fulfilled as the devices are: held, sick, unknown
    :cvar FAILED: the host failed, or a device could not be cleaned
    """

    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True)
class Timing:
    """Hold the histogram of durations of one driver's operations of one kind with the same result.

    :ivar counts: how many took at most each of ``BOUNDS`` and more than the one before, then how many took longer
    :ivar seconds: of all together
    """

    driver: str
    operation: Operation
    result: Result
    counts: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)
    seconds: float = 0.0

    def plus(self, seconds: float) -> "Timing":
        place = sum(seconds > bound for bound in BOUNDS)
        counts = tuple(count + (index == place) for index, count in enumerate(self.counts))
        return dataclasses.replace(self, counts=counts, seconds=self.seconds + seconds)


class Timings:
    """Count acquisitions and releases in a file that all processes of the host share."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = FileLock(directory / _LOCK, LOCK_TIMEOUT)

    @contextlib.contextmanager
    def measured(self, operation: Operation, consumer: Consumer) -> Iterator[list[str]]:
        """Count the operation that the block performs.

        :returns: a list for the complaints of an operation that raises nothing when it fails
        """
        complaints: list[str] = []
        result, began = Result.FAILED, time.monotonic()
        try:
            yield complaints
            result = Result.FAILED if complaints else Result.DONE
        except (HostActionFailed, ScrubFailed):
            raise
        except ContainerHostError:
            result = Result.REFUSED
            raise
        finally:
            self._count(Timing(consumer.driver, operation, result), time.monotonic() - began)

    def read(self) -> tuple[Timing, ...]:
        """Return the counts by driver, operation and result. Takes no lock."""
        try:
            with Directory(self._directory) as directory:
                content = json.loads(directory.read(FILE))
            records.version(content)
            return tuple(_parsed(row) for row in content["timings"])
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            LOG.warning("The timings in %s cannot be read and start from zero: %s", self._directory / FILE, error)
            return ()

    def _count(self, timing: Timing, seconds: float) -> None:
        try:
            with self._lock.held():
                known = {(one.driver, one.operation, one.result): one for one in self.read()}
                key = timing.driver, timing.operation, timing.result
                known[key] = known.get(key, timing).plus(seconds)
                rows = [dataclasses.asdict(one) for _, one in sorted(known.items())]
                text = json.dumps(records.content({"timings": rows}, VERSION))
                with Directory(self._directory) as directory:
                    owner = directory.owner if os.geteuid() == 0 else None
                    directory.write_all({FILE: text.encode()}, 0o644, owner, durable=False)
        except (OSError, TimeoutError) as error:
            LOG.warning("A timing of %s cannot be written: %s", timing.operation, error)


def _parsed(row: Any) -> Timing:
    """Parse a row of the file.

    :raises ValueError, KeyError, TypeError: it is malformed
    """
    counts, driver = tuple(row["counts"]), row["driver"]
    if not (isinstance(driver, str) and len(counts) == len(BOUNDS) + 1 and all(type(one) is int for one in counts)):
        raise ValueError(f"{row!r} is not a timing")
    return Timing(driver, Operation(row["operation"]), Result(row["result"]), counts, float(row["seconds"]))
