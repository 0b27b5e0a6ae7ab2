# SPDX-License-Identifier: Apache-2.0
"""Read and write pipes with a time limit, so that a hanging other end does not block one of oned's few threads."""

import io
import os
import select
from typing import IO, TYPE_CHECKING, BinaryIO

from onedriver.errors import DriverError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

STALL_TIMEOUT = 1800.0  # s; an engine may need long to commit a large container before it sends data


class Pipe(io.RawIOBase):
    """Read or write a pipe, and fail if no data moves for :data:`STALL_TIMEOUT` seconds.

    :param file: one end of a pipe, not used by other processes; closed with this object
    :param what: begins the error message
    """

    def __init__(self, file: IO[bytes], what: str) -> None:
        self._file = file
        self._what = what
        os.set_blocking(file.fileno(), False)

    def fileno(self) -> int:
        return self._file.fileno()

    def readable(self) -> bool:
        return self._file.readable()

    def writable(self) -> bool:
        return self._file.writable()

    def readinto(self, buffer: "WriteableBuffer") -> int:
        self._await(select.POLLIN)
        return os.readv(self.fileno(), [buffer])

    def write(self, data: "ReadableBuffer") -> int:
        self._await(select.POLLOUT)
        return os.write(self.fileno(), data)

    def _await(self, event: int) -> None:
        """Wait until the other end reads, writes or closes; raise DriverError after :data:`STALL_TIMEOUT` seconds."""
        poll = select.poll()
        poll.register(self.fileno(), event)
        if not poll.poll(STALL_TIMEOUT * 1000):
            raise DriverError(f"{self._what}: no data moved for {STALL_TIMEOUT / 60:g} min; does the storage or the "
                              "engine of one side hang?")

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def reader(file: IO[bytes], what: str) -> BinaryIO:
    return io.BufferedReader(Pipe(file, what), 1 << 16)


def writer(file: IO[bytes], what: str) -> BinaryIO:
    return io.BufferedWriter(Pipe(file, what), 1 << 16)
