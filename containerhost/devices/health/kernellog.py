# SPDX-License-Identifier: Apache-2.0
"""Read drivers' messages about devices since the kernel started, and which devices were reset since.

Read from /dev/kmsg (Documentation/ABI/testing/dev-kmsg), whose messages are those of this boot: no state is kept
between processes. A reset is marked by a message of our own in the same log, after the messages that it settles, and
is discarded with them. Only root can write there, and driver messages count only with the kernel's own facility,
which no writer can set. The driver's vendor interprets the messages (DriverLog).
"""

import abc
import dataclasses
import errno
import json
import os
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import ClassVar

from containerhost.devices.health.rules import WELL, Health
from containerhost.linux.sysfs import Host

PATH = "/dev/kmsg"
_RECORD_LIMIT = 8192  # bytes; the kernel's limit of one message
_LOOK_LIMIT = 64 << 20  # bytes; twice the largest log a kernel can have
DEVICES_LIMIT = 4096  # devices whose findings are kept

# "6,339,5140900,-;text": priority, number, microseconds, flags. Facility: priority without its last bits.
_RECORD = re.compile(r"([0-9]{1,10}),[0-9]+,[0-9]+,[^;]*;(.*)")
_FACILITY_BITS = 3
_OWN = "containerhost: "
_MARK = re.compile(r"containerhost: ([0-9a-f:.]{7,16}) was reset((?: [a-z_]+=[0-9]{1,18})*)$")


def mark(address: str, counters: Mapping[str, int]) -> str:
    """Return the message to log after a reset: earlier messages are settled, and counters start at these values."""
    return " ".join([f"containerhost: {address} was reset", *(f"{name}={count}" for name, count in counters.items())])


class DriverLog(abc.ABC):
    """Read one driver's kernel messages. Keeps a few numbers for each of at most :data:`DEVICES_LIMIT` devices.

    :cvar prefix: what its messages begin with, one text or several
    """

    prefix: ClassVar[str | tuple[str, ...]]

    @abc.abstractmethod
    def take(self, text: str) -> None:
        """Process one kernel message that begins with the prefix."""

    @abc.abstractmethod
    def acknowledge(self, address: str) -> None:
        """Discard the messages about a device: it was reset."""

    @abc.abstractmethod
    def health(self) -> Mapping[str, Health]:
        """Return the complaints by PCI address; by a driver's name, those about all devices of that driver."""


Drivers = Callable[[], Collection[DriverLog]]


@dataclasses.dataclass(frozen=True)
class Log:
    """Hold the messages in the kernel log about each device since its last reset.

    :ivar counters: error counters of each device when it was last reset
    :ivar readable: whether there is a log that this process may read
    """

    by_address: Mapping[str, Health] = dataclasses.field(default_factory=dict)
    counters: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)
    readable: bool = True

    def health(self, address: str, driver: str | None = None) -> Health:
        """Return the complaints about the device, and about all devices of its driver."""
        return self.by_address.get(address, WELL) + self.by_address.get(driver or "", WELL)

    def counted(self, address: str) -> Mapping[str, int]:
        """Return the device's error counters when it was last reset."""
        return self.counters.get(address, {})


class Reader:
    """Pass each message of the kernel log to the drivers that may have written it, and apply marks of resets."""

    def __init__(self, drivers: Collection[DriverLog]) -> None:
        self._drivers = drivers
        self._telling = tuple(word.encode() for word in (_OWN, *(prefix for driver in drivers for prefix in (
            (driver.prefix,) if isinstance(driver.prefix, str) else driver.prefix))))
        self._counters: dict[str, Mapping[str, int]] = {}
        self._part = b""

    def take(self, data: bytes) -> None:
        """Process messages of the log.

        :param data: a message, or a piece of a captured log
        """
        *lines, self._part = (self._part + data).split(b"\n")
        self._part = self._part[-_RECORD_LIMIT:]
        for line in lines:
            if not any(word in line for word in self._telling):  # skip unrelated messages, which are nearly all
                continue
            record = _RECORD.fullmatch(line.decode("utf-8", "replace"))
            if record:
                self._message(int(record[1]) >> _FACILITY_BITS == 0, record[2])

    def log(self) -> Log:
        found: dict[str, Health] = {}
        for driver in self._drivers:
            for address, health in driver.health().items():
                found[address] = found.get(address, WELL) + health
        return Log(found, dict(self._counters))

    def _message(self, of_kernel: bool, text: str) -> None:
        if of_kernel:
            for driver in self._drivers:
                if text.startswith(driver.prefix):
                    driver.take(text)
        elif found := _MARK.fullmatch(text):
            for driver in self._drivers:
                driver.acknowledge(found[1])
            if len(self._counters) < DEVICES_LIMIT:
                self._counters[found[1]] = {name: int(count) for name, _, count in
                                            (word.partition("=") for word in found[2].split())}


class Follower:
    """Follow a host's log: each message is read once.

    :param drivers: returns new readers of the drivers' messages
    """

    def __init__(self, host: Host, drivers: Drivers) -> None:
        self._host = host
        self._drivers = drivers
        self._lock = threading.Lock()
        self._process = 0
        self._file: int | None = None
        self._reader = Reader(())

    def look(self) -> Log:
        with self._lock:
            if self._process != os.getpid():  # a forked process shares the file offset
                self._begin()
            if self._file is None:
                return Log(readable=False)
            for data in pieces(self._file):
                self._reader.take(data)
            return self._reader.log()

    def _begin(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = self._host.open(PATH)
        self._reader = Reader(self._drivers())
        self._process = os.getpid() if self._file is not None else 0


def pieces(file: int) -> Iterator[bytes]:
    """Yield the unread content: message by message from /dev/kmsg, blocks from a captured file."""
    left = _LOOK_LIMIT
    while left > 0:
        try:
            data = os.read(file, _RECORD_LIMIT)
        except OSError as error:
            if error.errno == errno.EPIPE:  # the oldest messages were overwritten: continue with the next
                continue
            return
        if not data:
            return
        left -= len(data)
        yield data


def captured(host: Host, drivers: Drivers) -> Log:
    """Return the log of a captured tree; an empty one if the tree has none."""
    data, taken = host.data(PATH, _LOOK_LIMIT), Reader(drivers())
    taken.take(data or b"")
    return dataclasses.replace(taken.log(), readable=data is not None)


def plain(log: Log) -> str:
    """Return the log as text that can cross a process boundary; :func:`restored` parses it."""
    return json.dumps([log.readable, log.by_address, log.counters])


def restored(text: str) -> Log:
    readable, found, counters = json.loads(text)
    return Log({address: Health(*map(tuple, health)) for address, health in found.items()}, counters, readable)
