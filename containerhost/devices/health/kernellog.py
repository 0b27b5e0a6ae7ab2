"""What the kernel said of devices since it started: NVIDIA's Xids, and the marks of resets.

Read from /dev/kmsg (Documentation/ABI/testing/dev-kmsg), whose messages are those of this boot: nothing need be
remembered between two processes. A reset is marked by a message of our own in the same log, so that it comes after what
it settled, and is forgotten with it. Only root can write there; and Xids count only in messages of the kernel itself,
whose facility no writer can have.
"""

import dataclasses
import errno
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping

from containerhost.devices.health.xids import NVLINK5, RECOVERY, Xid
from containerhost.sysfs import Host

PATH = "/dev/kmsg"
_RECORD_LIMIT = 8192  # bytes; the kernel's own for one message
_LOOK_LIMIT = 64 << 20  # bytes; twice the largest log a kernel can have
_DEVICES_LIMIT = 4096  # of which something is remembered

# "6,339,5140900,-;NVRM: ...": priority, number, microseconds, flags. Facility: priority without its last bits.
_RECORD = re.compile(r"([0-9]{1,10}),[0-9]+,[0-9]+,[^;]*;(.*)")
_FACILITY_BITS = 3
# "NVRM: Xid (PCI:0000:3b:00): 79, pid=..., GPU has fallen off the bus."; a slice's has "GPU-I:05" in the parentheses.
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})[^)]{0,40}\): ([0-9]{1,4})(?:,(.*))?$",
                  re.IGNORECASE)
_RECOVERY = re.compile(r"GPU recovery action changed from 0x[0-9a-f]+ \([^)]*\) to 0x([0-9a-f]+) \(([^)]{1,60})\)",
                       re.IGNORECASE)
_TELLING = (b"NVRM: ", b"containerhost: ")
_LOADED = "NVRM: loading NVIDIA UNIX"  # the driver was loaded: every GPU begins anew
_MARK = re.compile(r"containerhost: ([0-9a-f:.]{7,16}) was reset((?: [a-z_]+=[0-9]{1,18})*)$")


def mark(address: str, counters: Mapping[str, int]) -> str:
    """What to write when a device was reset: all before is settled, counters begin at these values."""
    return " ".join([f"containerhost: {address} was reset", *(f"{name}={count}" for name, count in counters.items())])


@dataclasses.dataclass(frozen=True)
class Log:
    """:ivar readable: whether there is a log that this process may read
    """

    by_address: Mapping[str, tuple[Xid, ...]] = dataclasses.field(default_factory=dict)
    counters: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)
    readable: bool = True

    def xids(self, address: str) -> tuple[Xid, ...]:
        """Since the device was last reset, by number."""
        return self.by_address.get(address, ())

    def counted(self, address: str) -> Mapping[str, int]:
        """Its error counters when it was last reset."""
        return self.counters.get(address, {})


class Reader:
    """Takes up message after message; what it keeps is a few numbers for each device."""

    def __init__(self) -> None:
        self._xids: dict[str, dict[int, Xid]] = {}
        self._counters: dict[str, Mapping[str, int]] = {}
        self._part = b""

    def take(self, data: bytes) -> None:
        """:param data: a message, or a piece of a captured log"""
        *lines, self._part = (self._part + data).split(b"\n")
        self._part = self._part[-_RECORD_LIMIT:]
        for line in lines:
            if not any(word in line for word in _TELLING):  # nearly all are about something else
                continue
            record = _RECORD.fullmatch(line.decode("utf-8", "replace"))
            if record:
                self._message(int(record[1]) >> _FACILITY_BITS == 0, record[2])

    def log(self) -> Log:
        return Log({address: tuple(found[number] for number in sorted(found)) for address, found in self._xids.items()},
                   dict(self._counters))

    def _message(self, of_kernel: bool, text: str) -> None:
        if of_kernel and text.startswith("NVRM: "):
            self._driver(text)
        elif not of_kernel and (found := _MARK.fullmatch(text)):
            self._xids.pop(found[1], None)
            if len(self._counters) < _DEVICES_LIMIT:
                self._counters[found[1]] = {name: int(count) for name, _, count in
                                            (word.partition("=") for word in found[2].split())}

    def _driver(self, text: str) -> None:
        if text.startswith(_LOADED):
            self._xids.clear()
            return
        match = _XID.match(text)
        if match and len(self._xids) < _DEVICES_LIMIT:
            address = f"{int(match[1], 16):04x}:{match[2]}:{match[3]}.0".lower()
            self._xid(address, int(match[4]), match[5] or "")

    def _xid(self, address: str, number: int, text: str) -> None:
        known = self._xids.setdefault(address, {})
        recovery = _RECOVERY.search(text) if number == RECOVERY else None
        if recovery and int(recovery[1], 16) == 0:
            known.clear()
        elif recovery or number != RECOVERY:
            before = known.get(number)
            known[number] = Xid(number, before.count + 1 if before else 1,
                                fatal=bool(before and before.fatal) or (number in NVLINK5 and " Fatal " in text),
                                action=recovery[2] if recovery else "")
        if not known:
            del self._xids[address]


class Follower:
    """This host's log: what was read once is not read again."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._process = 0
        self._file: int | None = None
        self._reader = Reader()

    def look(self) -> Log:
        with self._lock:
            if self._process != os.getpid():  # a fork shares the place in the log with its parent
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
        self._reader = Reader()
        self._process = os.getpid() if self._file is not None else 0


def pieces(file: int) -> Iterator[bytes]:
    """What is there to read now: message by message from /dev/kmsg, blocks of a captured file."""
    left = _LOOK_LIMIT
    while left > 0:
        try:
            data = os.read(file, _RECORD_LIMIT)
        except OSError as error:
            if error.errno == errno.EPIPE:  # the oldest were overwritten meanwhile: go on with what is there
                continue
            return
        if not data:
            return
        left -= len(data)
        yield data


_FOLLOWER = Follower(Host())


def read(host: Host) -> Log:
    """The log of this host, or of a captured tree; an empty one where there is none."""
    if host.live:
        return _FOLLOWER.look()
    data, reader = host.data(PATH, _LOOK_LIMIT), Reader()
    reader.take(data or b"")
    return dataclasses.replace(reader.log(), readable=data is not None)


def plain(log: Log) -> str:
    """As text that crosses a process boundary; :func:`restored` makes a log of it."""
    return json.dumps([log.readable, {address: [dataclasses.astuple(xid) for xid in found]
                                      for address, found in log.by_address.items()}, dict(log.counters)])


def restored(text: str) -> Log:
    readable, xids, counters = json.loads(text)
    return Log({address: tuple(Xid(*each) for each in found) for address, found in xids.items()}, counters, readable)
