# SPDX-License-Identifier: Apache-2.0
"""Draw how fast a program ran between trades of cores, as SVG. Pure."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, TOP, BAR, GAP = 760, 300, 70, 30, 22, 14
COLOURS = ("#8a8a8a", "#c0392b", "#2471a3")


class Point(NamedTuple):
    """:ivar rate: regions a second
    """

    cores: int
    rate: float


def draw(rates: Mapping[str, Sequence[Point]]) -> bytes:
    """Return bars of each turn on a logarithmic scale, a colour for each kind, and the cores of the last kind below."""
    top = max((point.rate for points in rates.values() for point in points), default=1.0)
    decades = max(1, math.ceil(math.log10(max(top, 10.0))))
    parts = [text(LEFT + 110 * index, 18, kind, colour) for index, (kind, colour) in enumerate(
        zip(rates, COLOURS, strict=False))]
    for decade in range(decades + 1):
        y = TOP + HEIGHT - HEIGHT * decade / decades
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y:.0f}" y2="{y:.0f}" stroke="#ddd"/>')
        parts.append(text(8, y + 4, f"{10 ** decade:,}"))
    turns = max(map(len, rates.values()), default=0)
    for turn in range(turns):
        left = LEFT + GAP + turn * (BAR * len(rates) + GAP)
        for index, (points, colour) in enumerate(zip(rates.values(), COLOURS, strict=False)):
            if turn < len(points):
                height = HEIGHT * math.log10(max(points[turn].rate, 1.0)) / decades
                parts.append(f'<rect x="{left + index * BAR}" y="{TOP + HEIGHT - height:.0f}" width="{BAR - 2}" '
                             f'height="{height:.0f}" fill="{colour}"/>')
        cores = [points[turn].cores for points in rates.values() if turn < len(points)]
        parts.append(text(left, TOP + HEIGHT + 18, f"{cores[-1]} cores"))
    parts.append(text(8, TOP - 14, "regions/s"))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{TOP + HEIGHT + 30}" '
            f'font-family="sans-serif" font-size="12">{"".join(parts)}</svg>\n').encode()


def text(x: float, y: float, words: str, colour: str = "#333") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{colour}">{escape(words)}</text>'
