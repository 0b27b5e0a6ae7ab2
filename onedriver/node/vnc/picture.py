# SPDX-License-Identifier: Apache-2.0
"""A terminal as the picture that a viewer has: what of it changed since, in the viewer's pixels."""

import struct
from collections.abc import Iterator, Sequence

from onedriver.node.vnc import glyphs
from onedriver.node.vnc.rfb import PixelFormat
from onedriver.node.vnc.terminal import COLUMNS, LINES, Cell

WIDTH, HEIGHT = COLUMNS * glyphs.WIDTH, LINES * glyphs.HEIGHT
RECTANGLE = struct.Struct(">HHHHi")
RAW = 0  # the encoding that every viewer has

Lines = Sequence[Sequence[Cell]]


class Picture:
    """Of one viewer."""

    def __init__(self) -> None:
        self._sent: Lines | None = None

    def forget(self) -> None:
        """The viewer has nothing of it any more."""
        self._sent = None

    def update(self, cells: Lines, form: PixelFormat) -> bytes:
        """The message that makes the viewer's picture this one; empty when it is."""
        rectangles = [drawn(place, first, part, form) for place, first, part in changes(self._sent, cells)]
        self._sent = cells
        return struct.pack(">BxH", 0, len(rectangles)) + b"".join(rectangles) if rectangles else b""


def changes(before: Lines | None, now: Lines) -> Iterator[tuple[int, int, Sequence[Cell]]]:
    """Of each line that is different, from the first to the last cell that is: line, column, cells."""
    for place, line in enumerate(now):
        if before is None:
            yield place, 0, line
            continue
        different = [column for column, cell in enumerate(line) if cell != before[place][column]]
        if different:
            yield place, different[0], line[different[0]:different[-1] + 1]


def drawn(place: int, first: int, cells: Sequence[Cell], form: PixelFormat) -> bytes:
    """A rectangle of one line of letters."""
    letters = [glyphs.pixels(cell.letter, cell.underlined, form.pixel(cell.colour), form.pixel(cell.ground))
               for cell in cells]
    head = RECTANGLE.pack(first * glyphs.WIDTH, place * glyphs.HEIGHT, len(cells) * glyphs.WIDTH, glyphs.HEIGHT, RAW)
    return head + b"".join(b"".join(letter[row] for letter in letters) for row in range(glyphs.HEIGHT))
