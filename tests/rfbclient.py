# SPDX-License-Identifier: Apache-2.0
"""A viewer of VNC, as small as it can be: RFB 3.8 (RFC 6143), pixels of 32 bits, no encoding."""

import socket
import struct
import subprocess
from typing import Self

TIMEOUT = 20  # s
RETURN = 0xFF0D


class Refused(Exception):
    """With the reason that the server gives."""


class Viewer:
    """:ivar name: what the server calls its screen
    :ivar framebuffer: red, green and blue of every dot, by line
    """

    def __init__(self, connection: socket.socket, password: str | None = None) -> None:
        self._socket = connection
        connection.settimeout(TIMEOUT)
        self._greet(password)
        self.width, self.height = struct.unpack(">HH", self._take(4))
        self._take(16)
        self.name = self._text().decode()
        self.framebuffer = [bytearray(4 * self.width) for _ in range(self.height)]

    @classmethod
    def at(cls, port: int, password: str | None = None) -> Self:
        connection = socket.create_connection(("127.0.0.1", port), TIMEOUT)
        try:
            return cls(connection, password)
        except BaseException:
            connection.close()
            raise

    def _greet(self, password: str | None) -> None:
        version = self._take(12)
        if version != b"RFB 003.008\n":
            raise AssertionError(version)
        self._socket.sendall(version)
        count = self._take(1)[0]
        if not count:
            raise Refused(self._text().decode())
        if self._take(count) != (b"\2" if password else b"\1"):
            raise AssertionError("another kind of security was expected")
        self._socket.sendall(b"\2" if password else b"\1")
        if password:
            self._socket.sendall(des(self._take(16), password))
        if self._take(4) != b"\0\0\0\0":
            raise Refused(self._text().decode())
        self._socket.sendall(b"\1")

    def _take(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            part = self._socket.recv(length - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def _text(self) -> bytes:
        return self._take(struct.unpack(">I", self._take(4))[0])

    def set_format(self, bits: int, big_endian: bool, maxima: tuple[int, ...], shifts: tuple[int, ...]) -> None:
        self._socket.sendall(struct.pack(">BxxxBBBBHHHBBBxxx", 0, bits, bits, big_endian, 1, *maxima, *shifts))

    def type(self, text: str) -> None:
        for letter in text:
            self.press(RETURN if letter == "\n" else ord(letter))

    def press(self, *keys: int) -> None:
        """All are held down, then let go."""
        for down, number in [*((1, key) for key in keys), *((0, key) for key in reversed(keys))]:
            self._socket.sendall(struct.pack(">BBxxI", 4, down, number))

    def ask(self, changes_only: bool = True) -> None:
        self._socket.sendall(struct.pack(">BBHHHH", 3, changes_only, 0, 0, self.width, self.height))

    def update(self, size: int = 4) -> list[tuple[int, int, int, int]]:
        """Take the next update into the picture.

        :param size: bytes of a pixel
        :returns: its rectangles: column, line, width, height
        """
        kind, count = struct.unpack(">BxH", self._take(4))
        if kind != 0:
            raise AssertionError(kind)
        return [self._rectangle(size) for _ in range(count)]

    def _rectangle(self, size: int) -> tuple[int, int, int, int]:
        column, line, width, height, encoding = struct.unpack(">HHHHi", self._take(12))
        if encoding != 0:
            raise AssertionError(encoding)
        for row in range(line, line + height):
            self.framebuffer[row][size * column:size * (column + width)] = self._take(size * width)
        return column, line, width, height

    def hung_up(self) -> bool:
        """Return whether the server ends it, once all that it sent is read."""
        try:
            while self._socket.recv(4096):
                pass
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        self._socket.close()


def des(challenge: bytes, password: str) -> bytes:
    """By another program than the server's; its key has the bits of each byte reversed."""
    key = "".join(f"{int(f'{byte:08b}'[::-1], 2):02x}" for byte in password.encode()[:8].ljust(8, b"\0"))
    return subprocess.run(["openssl", "enc", "-des-ede3-ecb", "-nopad", "-K", key * 3], input=challenge,
                          capture_output=True, check=True).stdout
