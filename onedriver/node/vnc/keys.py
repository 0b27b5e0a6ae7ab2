# SPDX-License-Identifier: Apache-2.0
"""Translate a viewer's keys for a terminal. Pure.

Keys are numbered as by X11 (keysymdef.h); the terminal's codes are those of the Linux console and of xterm.
"""

from collections.abc import Mapping

CONTROL, ALT = frozenset({0xFFE3, 0xFFE4}), frozenset({0xFFE7, 0xFFE8, 0xFFE9, 0xFFEA})
UNICODE, LAST_UNICODE = 0x01000000, 0x0110FFFF

PLAIN: Mapping[int, bytes] = {
    0xFF08: b"\x7f", 0xFF09: b"\t", 0xFE20: b"\x1b[Z", 0xFF0D: b"\r", 0xFF8D: b"\r", 0xFF1B: b"\x1b",
    0xFF63: b"\x1b[2~", 0xFFFF: b"\x1b[3~", 0xFF50: b"\x1b[1~", 0xFF57: b"\x1b[4~", 0xFF55: b"\x1b[5~",
    0xFF56: b"\x1b[6~",
    # Keypad without and with NumLock.
    0xFF9E: b"\x1b[2~", 0xFF9F: b"\x1b[3~", 0xFF95: b"\x1b[1~", 0xFF9C: b"\x1b[4~", 0xFF9A: b"\x1b[5~",
    0xFF9B: b"\x1b[6~", 0xFFAA: b"*", 0xFFAB: b"+", 0xFFAC: b",", 0xFFAD: b"-", 0xFFAE: b".", 0xFFAF: b"/",
    **{0xFFB0 + digit: b"%d" % digit for digit in range(10)},
    # F1 to F12.
    **{0xFFBE + index: b"\x1bO" + letter.encode() for index, letter in enumerate("PQRS")},
    **{0xFFC2 + index: b"\x1b[%d~" % number for index, number in enumerate((15, 17, 18, 19, 20, 21, 23, 24))},
}
ARROWS: Mapping[int, bytes] = {0xFF52: b"A", 0xFF54: b"B", 0xFF53: b"C", 0xFF51: b"D",
                               0xFF97: b"A", 0xFF99: b"B", 0xFF98: b"C", 0xFF96: b"D"}


class Keyboard:
    """Track the pressed modifier keys."""

    def __init__(self) -> None:
        self._held: set[int] = set()

    def typed(self, key: int, down: bool, application: bool) -> bytes:
        """Return the guest's input for a key, if any; ``application`` selects the arrows' other form."""
        if key in CONTROL or key in ALT:
            (self._held.add if down else self._held.discard)(key)
            return b""
        if not down:
            return b""
        letter = text(key)
        if letter and self._held & CONTROL:
            sent = control(letter)
        elif key in ARROWS:
            sent = (b"\x1bO" if application else b"\x1b[") + ARROWS[key]
        else:
            sent = letter.encode() or PLAIN.get(key, b"")
        return b"\x1b" + sent if sent and self._held & ALT else sent


def text(key: int) -> str:
    """Return the character of a key; empty if there is none. Latin-1's characters are their own key numbers."""
    if 0x20 <= key <= 0x7E or 0xA0 <= key <= 0xFF:
        return chr(key)
    number = key - UNICODE
    # Surrogates are not characters.
    if UNICODE < key <= LAST_UNICODE and number >= 0x20 and not 0x7F <= number < 0xA0 and not 0xD800 <= number < 0xE000:
        return chr(number)
    return ""


def control(letter: str) -> bytes:
    """Return the code of Ctrl and a character; the character itself if there is no such code."""
    if letter == " ":
        return b"\0"
    if letter == "?":
        return b"\x7f"
    upper = letter.upper()
    return bytes([ord(upper) & 0x1F]) if len(upper) == 1 and "@" <= upper <= "_" else letter.encode()
