# SPDX-License-Identifier: Apache-2.0
"""Draw a terminal's changes for the viewer's framebuffer, in the viewer's pixel format."""

import struct
from collections.abc import Iterator, Sequence

from onedriver.node.vnc import glyphs
from onedriver.node.vnc.rfb import PixelFormat
from onedriver.node.vnc.terminal import COLUMNS, LINES, Cell

WIDTH, HEIGHT = COLUMNS * glyphs.WIDTH, LINES * glyphs.HEIGHT
RECTANGLE = struct.Struct(">HHHHi")
RAW = 0  # encoding that every viewer supports

Lines = Sequence[Sequence[Cell]]


class Framebuffer:
    """Track the framebuffer of one viewer."""

    def __init__(self) -> None:
        self._sent: Lines | None = None

    def forget(self) -> None:
        """Discard the viewer's known content, so that everything is sent again."""
        self._sent = None

    def update(self, cells: Lines, form: PixelFormat) -> bytes:
        """Return the message that updates the viewer's framebuffer; empty without changes."""
        rectangles = [drawn(line_number, first, part, form) for line_number, first, part in changes(self._sent, cells)]
        self._sent = cells
        return struct.pack(">BxH", 0, len(rectangles)) + b"".join(rectangles) if rectangles else b""


def changes(before: Lines | None, now: Lines) -> Iterator[tuple[int, int, Sequence[Cell]]]:
    """Yield line, column and cells of each changed line, from the first to the last changed cell."""
    for line_number, line in enumerate(now):
        if before is None:
            yield line_number, 0, line
            continue
        different = [column for column, cell in enumerate(line) if cell != before[line_number][column]]
        if different:
            yield line_number, different[0], line[different[0]:different[-1] + 1]


def drawn(line_number: int, first: int, cells: Sequence[Cell], form: PixelFormat) -> bytes:
    """Return a rectangle with one line of characters."""
    letters = [glyphs.pixels(cell.letter, cell.underlined, form.pixel(cell.colour), form.pixel(cell.ground))
               for cell in cells]
    head = RECTANGLE.pack(first * glyphs.WIDTH, line_number * glyphs.HEIGHT, len(cells) * glyphs.WIDTH, glyphs.HEIGHT,
                          RAW)
    return head + b"".join(b"".join(letter[row] for letter in letters) for row in range(glyphs.HEIGHT))
