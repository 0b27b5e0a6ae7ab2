# SPDX-License-Identifier: Apache-2.0
"""Implement the VNC protocol, RFB 3.8 (RFC 6143): its greeting, and a viewer's messages. Pure.

A viewer is not trusted: every message has a limit, and invalid messages end the connection.
"""

import dataclasses
import hmac
import struct

from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES
from cryptography.hazmat.primitives.ciphers import Cipher, modes

from onedriver.errors import DriverError

VERSION = b"RFB 003.008\n"
NONE, PASSWORD = 1, 2  # security types
CHALLENGE = 16  # bytes
KEY = 8  # significant bytes of a password
LONGEST_TEXT = 1 << 18  # bytes of clipboard text from a viewer
FORMAT = struct.Struct(">BBBBHHHBBBxxx")


class NotRfb(DriverError):
    """Signal that the other end is not a VNC viewer, or not a supported one."""


@dataclasses.dataclass(frozen=True)
class PixelFormat:
    """Describe the pixel format requested by a viewer, and encode colours in it.

    :ivar size: bytes of a pixel
    :ivar maxima, shifts: of red, green and blue
    """

    size: int
    big_endian: bool
    maxima: tuple[int, int, int]
    shifts: tuple[int, int, int]

    def pixel(self, colour: int) -> bytes:
        """Return a pixel of the colour 0xRRGGBB."""
        value = 0
        for index, (most, shift) in enumerate(zip(self.maxima, self.shifts, strict=True)):
            part = colour >> (16 - 8 * index) & 0xFF
            value |= (part * most + 127) // 255 << shift
        return (value & (1 << 8 * self.size) - 1).to_bytes(self.size, "big" if self.big_endian else "little")


USUAL = PixelFormat(4, False, (255, 255, 255), (16, 8, 0))


@dataclasses.dataclass(frozen=True)
class UpdateRequest:
    """Request a framebuffer update for the viewer, of changes or of everything."""

    changes_only: bool


@dataclasses.dataclass(frozen=True)
class Key:
    number: int
    down: bool


Message = PixelFormat | UpdateRequest | Key | None  # None is a message that is ignored


def description(name: str, width: int, height: int) -> bytes:
    """Return the last message of the greeting, with the name of the viewer's window."""
    text = name.encode()
    usual = FORMAT.pack(8 * USUAL.size, 24, USUAL.big_endian, 1, *USUAL.maxima, *USUAL.shifts)
    return struct.pack(">HH", width, height) + usual + struct.pack(">I", len(text)) + text


def failure(reason: str) -> bytes:
    text = reason.encode()
    return struct.pack(">I", len(text)) + text


def answers(challenge: bytes, response: bytes, password: str) -> bool:
    """Return whether a viewer knows the password: DES of the challenge, with the key's bits reversed in each byte."""
    key = bytes(int(f"{byte:08b}"[::-1], 2) for byte in password.encode()[:KEY].ljust(KEY, b"\0"))
    # TripleDES with three equal keys is DES. The protocol requires ECB.
    encryptor = Cipher(TripleDES(key * 3), modes.ECB()).encryptor()  # noqa: S305
    return hmac.compare_digest(encryptor.update(challenge), response)


def taken(data: bytes) -> tuple[Message, int] | None:
    """Return the first message of the input and its length; None while it is incomplete; raise NotRfb if invalid."""
    if not data:
        return None
    length = length_of(data)
    if length is None or len(data) < length:
        return None
    return parsed(data[:length]), length


LENGTHS = {0: 20, 3: 10, 4: 8, 5: 6}
SET_PIXEL_FORMAT, SET_ENCODINGS, WANTED, KEY_EVENT, COPIED = 0, 2, 3, 4, 6


def length_of(data: bytes) -> int | None:
    kind = data[0]
    if kind in LENGTHS:
        return LENGTHS[kind]
    if kind == SET_ENCODINGS:
        return None if len(data) < 4 else 4 + 4 * int.from_bytes(data[2:4])
    if kind != COPIED:
        raise NotRfb(f"a viewer sent a message of the unknown kind {kind}")
    if len(data) < 8:
        return None
    length = int.from_bytes(data[4:8])
    if length > LONGEST_TEXT:
        raise NotRfb(f"a viewer sent a text of {length} bytes")
    return 8 + length


def parsed(data: bytes) -> Message:
    kind = data[0]
    if kind == SET_PIXEL_FORMAT:
        return pixel_format(data[4:])
    if kind == WANTED:
        return UpdateRequest(bool(data[1]))
    if kind == KEY_EVENT:
        return Key(int.from_bytes(data[4:8]), bool(data[1]))
    return None


def pixel_format(data: bytes) -> PixelFormat:
    bits, _, big_endian, true_colour, *rest = FORMAT.unpack(data)
    if bits not in (8, 16, 32) or not true_colour or max(rest[3:]) >= bits:
        raise NotRfb(f"a viewer wants pixels of {bits} bits that are {'' if true_colour else 'no '}true colours")
    red, green, blue, *shifts = rest
    return PixelFormat(bits // 8, bool(big_endian), (red, green, blue), (shifts[0], shifts[1], shifts[2]))
