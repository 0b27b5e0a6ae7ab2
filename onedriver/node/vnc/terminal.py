# SPDX-License-Identifier: Apache-2.0
"""Emulate a terminal of 80 columns and 24 lines: the guest's output as cells with a character and two colours."""

import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

import pyte
import pyte.modes
import pyte.screens

COLUMNS, LINES = 80, 24
BLACK, GREY = 0x000000, 0xAAAAAA
COLOURS = {"black": BLACK, "red": 0xAA0000, "green": 0x00AA00, "brown": 0xAA5500, "blue": 0x3333CC,
           "magenta": 0xAA00AA, "cyan": 0x00AAAA, "white": GREY}
BRIGHT = {"black": 0x555555, "red": 0xFF5555, "green": 0x55FF55, "brown": 0xFFFF55, "blue": 0x7777FF,
          "magenta": 0xFF55FF, "cyan": 0x55FFFF, "white": 0xFFFFFF}
APPLICATION_KEYS = 1 << 5  # DECCKM, in pyte's numbering of private modes


class Cell(NamedTuple):
    """Hold one character cell of the terminal, with its colours as 0xRRGGBB."""

    letter: str
    colour: int
    ground: int
    underlined: bool = False


class Screen(pyte.Screen):
    """Hold the cells of the terminal, and collect its answers to the guest's queries."""

    def __init__(self) -> None:
        self.answers = b""
        super().__init__(COLUMNS, LINES)

    def draw(self, data: str) -> None:
        """Draw text with at most one code point in a cell.

        pyte appends a combining character to the previous cell and normalizes the whole cell again, which takes
        quadratic time: 200 kB of accents on one character would keep the process busy for minutes.
        """
        composed = unicodedata.normalize("NFC", data)
        super().draw("".join(letter for letter in composed if not unicodedata.combining(letter)))

    def write_process_input(self, data: str) -> None:
        self.answers += data.encode()


class Terminal:
    def __init__(self) -> None:
        self._screen = Screen()
        self._stream = pyte.ByteStream(self._screen)

    def show(self, data: bytes) -> bytes:
        """Process the guest's output, and return the terminal's answers."""
        try:
            self._stream.feed(data)
        except Exception:
            # pyte raises arbitrary exceptions on unknown sequences, which end its parser: restart it without this piece
            # of the output, which only this tenant sees.
            self._stream = pyte.ByteStream(self._screen)
        answers, self._screen.answers = self._screen.answers, b""
        return answers

    @property
    def wants_application_keys(self) -> bool:
        return APPLICATION_KEYS in self._screen.mode

    def cells(self) -> tuple[tuple[Cell, ...], ...]:
        """Return the cells by line and column, with the cursor as a cell in inverse colours."""
        lines = [list(self._line(number)) for number in range(LINES)]
        cursor = self._screen.cursor
        if not cursor.hidden:
            line, column = lines[min(cursor.y, LINES - 1)], min(cursor.x, COLUMNS - 1)
            cell = line[column]
            line[column] = cell._replace(colour=cell.ground, ground=cell.colour)
        return tuple(map(tuple, lines))

    def _line(self, number: int) -> Iterator[Cell]:
        line = self._screen.buffer[number]
        for column in range(COLUMNS):
            yield shown(line[column])


def shown(char: pyte.screens.Char) -> Cell:
    colour = rgb(char.fg, GREY, char.bold)
    ground = rgb(char.bg, BLACK, False)
    if char.reverse:
        colour, ground = ground, colour
    # Of a combined character, its base; the second half of a wide one is empty.
    return Cell(char.data[:1] or " ", colour, ground, char.underscore)


def rgb(name: str, default: int, bright: bool) -> int:
    """Return a colour as 0xRRGGBB.

    :param name: pyte's name of a colour: ``red``, ``brightred``, six hexadecimal digits or ``default``
    """
    if name == "default":
        return BRIGHT["white"] if bright else default
    plain = name.removeprefix("bright")
    if plain in COLOURS:
        return (BRIGHT if bright or plain != name else COLOURS)[plain]
    try:
        return int(name, 16) & 0xFFFFFF
    except ValueError:
        return default
