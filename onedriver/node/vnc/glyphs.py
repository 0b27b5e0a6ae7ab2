# SPDX-License-Identifier: Apache-2.0
"""Draw characters as dots: a font, and one character of it in a viewer's pixels."""

import functools

from PIL import Image, ImageDraw, ImageFont

from onedriver.errors import DriverError

FONT, SIZE = "DejaVuSansMono.ttf", 13
WIDTH, HEIGHT = 8, 16  # pixels of a character in this size
UNDERLINE = HEIGHT - 2  # row of the underline
LINES = range(0x2500, 0x25A0)  # box-drawing characters, which must touch; the font has them one pixel left and short
FULL = 0xFF


class NoFont(DriverError):
    """Signal that this node lacks a font for drawing."""


@functools.cache
def font() -> ImageFont.FreeTypeFont:
    """Load the font; raise NoFont if it is not installed."""
    try:
        return ImageFont.truetype(FONT, SIZE)
    except OSError as error:
        raise NoFont(f"there is no font {FONT} for consoles; install it (Debian: fonts-dejavu-core)") from error


@functools.lru_cache(maxsize=4096)
def dots(letter: str, underlined: bool) -> bytes:
    """Return a byte for each line of dots, with the first dot in its highest bit."""
    image = Image.new("1", (WIDTH, HEIGHT))
    draw = ImageDraw.Draw(image)
    draw.fontmode = "1"
    touches = ord(letter) in LINES
    draw.text((int(touches), 0), letter, font=font(), fill=1)
    found = bytearray(image.tobytes())
    if touches:
        found[-1] = found[-2]
    if underlined:
        found[UNDERLINE] = FULL
    return bytes(found)


@functools.lru_cache(maxsize=8192)
def pixels(letter: str, underlined: bool, colour: bytes, ground: bytes) -> tuple[bytes, ...]:
    """Return the character's lines of dots as pixels of both colours."""
    return tuple(b"".join(colour if line & bit else ground for bit in BITS) for line in dots(letter, underlined))


BITS = tuple(0x80 >> index for index in range(WIDTH))
