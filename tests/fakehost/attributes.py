# SPDX-License-Identifier: Apache-2.0
"""Attributes that act: a tiny FUSE file system, so that a write to ``sriov_numvfs`` returns when it is done or fails.

The kernel's sysfs answers a write with success or an errno; a plain file cannot, and the writer would have to
guess when the change has happened. Here the function behind the attribute runs before the write returns.
Protocol: kernel Documentation/filesystems/fuse.rst and include/uapi/linux/fuse.h, version 7.31.
"""

import dataclasses
import enum
import errno
import itertools
import logging
import os
import stat
import struct
import threading
from collections.abc import Callable

from tests.fakehost import linux

LOG = logging.getLogger(__name__)

_ROOT = 1
_FOREVER = 2**40  # seconds; an attribute's number is never used again, so the kernel may remember it
_DIRECT_IO = 1


class _Operation(enum.IntEnum):
    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    OPEN = 14
    READ = 15
    WRITE = 16
    RELEASE = 18
    FLUSH = 25
    INIT = 26
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42


_NO_REPLY = (_Operation.FORGET, _Operation.INTERRUPT, _Operation.BATCH_FORGET)


@dataclasses.dataclass(frozen=True)
class Attribute:
    """Describe a file: ``read`` gives its content, ``write`` gets the written text and raises OSError to refuse."""

    mode: int
    read: Callable[[], str]
    write: Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class _Request:
    opcode: int
    unique: int
    node: int
    body: bytes


class Attributes:
    """The file system. Every attribute is a file in one directory, named by its number."""

    def __init__(self, directory: str) -> None:
        os.makedirs(directory, exist_ok=True)
        self.directory = directory
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        self._attributes: dict[int, Attribute] = {}
        self._numbers = itertools.count(_ROOT + 1)
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
        linux.mount("fakehost", directory, "fuse", linux.MS_NOSUID | linux.MS_NODEV, options)
        threading.Thread(target=self._serve, name="attributes", daemon=True).start()

    def add(self, attribute: Attribute) -> str:
        """Add a file and return its path."""
        number = next(self._numbers)
        self._attributes[number] = attribute
        return f"{self.directory}/{number}"

    def _serve(self) -> None:
        while True:
            data = os.read(self._device, 2**17 + 4096)
            _, opcode, unique, node = struct.unpack_from("<IIQQ", data)
            request = _Request(opcode, unique, node, data[40:])
            if opcode == _Operation.WRITE:
                # A write may trigger reads of other attributes here, so it must not block this thread.
                threading.Thread(target=self._answer, args=(request,), daemon=True).start()
            elif opcode not in _NO_REPLY:
                self._answer(request)

    def _answer(self, request: _Request) -> None:
        try:
            error, body = 0, self._handle(request)
        except OSError as refusal:
            error, body = refusal.errno or errno.EIO, b""
        except Exception:
            LOG.exception("an attribute of the emulated host failed")
            error, body = errno.EIO, b""
        os.write(self._device, struct.pack("<IiQ", 16 + len(body), -error, request.unique) + body)

    def _handle(self, request: _Request) -> bytes:
        match request.opcode:
            case _Operation.INIT:
                return struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 12, 10, 4096, 1, 0, 0, 0)
            case _Operation.LOOKUP:
                return self._lookup(request.body.rstrip(b"\0").decode())
            case _Operation.GETATTR | _Operation.SETATTR:  # a shell truncates before it writes
                return struct.pack("<QII", _FOREVER, 0, 0) + self._stat(request.node)
            case _Operation.OPEN:
                return struct.pack("<QII", 0, _DIRECT_IO, 0)
            case _Operation.READ | _Operation.WRITE:
                return self._transfer(request)
            case _Operation.RELEASE | _Operation.FLUSH | _Operation.DESTROY:
                return b""
        raise OSError(errno.ENOSYS, f"operation {request.opcode}")

    def _lookup(self, name: str) -> bytes:
        number = int(name) if name.isdigit() else 0
        if number not in self._attributes:
            raise OSError(errno.ENOENT, name)
        return struct.pack("<QQQQII", number, 0, _FOREVER, _FOREVER, 0, 0) + self._stat(number)

    def _transfer(self, request: _Request) -> bytes:
        attribute = self._attributes[request.node]
        _, offset, size = struct.unpack_from("<QQI", request.body)
        if request.opcode == _Operation.READ:
            return attribute.read().encode()[offset : offset + size]
        attribute.write(request.body[40 : 40 + size].decode())
        return struct.pack("<II", size, 0)

    def _stat(self, number: int) -> bytes:
        mode = stat.S_IFDIR | 0o755 if number == _ROOT else stat.S_IFREG | self._attributes[number].mode
        return struct.pack("<QQQQQQIIIIIIIIII", number, 4096, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
