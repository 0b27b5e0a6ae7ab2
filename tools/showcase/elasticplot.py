# SPDX-License-Identifier: Apache-2.0
"""Draw the cores of servers over time, and how fast their programs ran, as SVG. Pure."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH, LEFT, TOP = 900, 110, 34
CORES, RATES, GAP = 56, 70, 26  # heights of the parts of a panel
COLOURS = ("#2471a3", "#c0392b", "#7d8c1f")
GREY = "#999"


class Bar(NamedTuple):
    """:ivar began: seconds
    :ivar rates: of each program that worked, of what a fixed server does
    """

    began: float
    seconds: float
    rates: Mapping[str, float]


class Panel(NamedTuple):
    """:ivar cores: from which second on each server had how many
    :ivar bars: nothing: the panel has its cores alone
    """

    title: str
    cores: Sequence[tuple[float, Mapping[str, int]]]
    bars: Sequence[Bar]

    @property
    def end(self) -> float:
        return self.cores[-1][0] if self.cores else 0.0

    @property
    def height(self) -> int:
        return CORES + (RATES + 6 if self.bars else 0) + GAP


def draw(trades: Sequence[Panel], finish: Sequence[Panel], names: Sequence[str], cores: int) -> bytes:
    """Return both groups of panels, each with a time axis of its own.

    :param names: of the servers, in the order of their colours
    :param cores: of the machine
    """
    colours = dict(zip(names, COLOURS, strict=True))
    parts = [text(LEFT + 130 * index, 16, f"■ {name}", colour) for index, (name, colour) in enumerate(colours.items())]
    y = TOP
    for panels in (trades, finish):
        end = max((panel.end for panel in panels), default=0.0) or 1.0
        for panel in panels:
            parts += _panel(panel, y, (WIDTH - LEFT - 10) / end, colours, cores)
            y += panel.height
        parts += _axis(y - GAP + 14, end)
        y += GAP
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" font-family="sans-serif" '
            f'font-size="12"><rect width="{WIDTH}" height="{y}" fill="#fff"/>{"".join(parts)}</svg>\n').encode()


def _panel(panel: Panel, y: int, scale: float, colours: Mapping[str, str], cores: int) -> Iterator[str]:
    """:param scale: pixels a second"""
    yield text(6, y + 14, panel.title)
    yield text(LEFT - 44, y + 14, "cores", GREY)
    for (began, each), (ended, _) in itertools.pairwise(panel.cores):
        below = 0
        for name, colour in colours.items():
            if count := each.get(name, 0):
                height = count * CORES / cores
                yield box(LEFT + began * scale, y + CORES - below - height, (ended - began) * scale, height, colour)
                below += height
    if panel.bars:
        y, top = y + CORES + 6, max(1.0, *(sum(bar.rates.values()) for bar in panel.bars))
        yield text(LEFT - 44, y + 14, "work", GREY)
        for bar in panel.bars:
            below = 0.0
            for name, colour in colours.items():
                height = bar.rates.get(name, 0.0) * RATES / top
                yield box(LEFT + bar.began * scale, y + RATES - below - height, bar.seconds * scale, height, colour,
                          0.6)
                below += height
        for mark in range(1, int(top) + 1):
            level = y + RATES - mark * RATES / top
            yield (f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{level:.1f}" y2="{level:.1f}" stroke="{GREY}" '
                   'stroke-dasharray="2"/>')
            yield text(LEFT - 14, level + 4, str(mark), GREY)


def _axis(y: float, end: float) -> Iterator[str]:
    step = next((step for step in (5, 10, 20, 50, 100, 200) if end / step <= 12), 500)
    for second in range(0, int(end) + 1, step):
        yield text(LEFT + second * (WIDTH - LEFT - 10) / end, y, f"{second} s", GREY)


def box(x: float, y: float, width: float, height: float, colour: str, opacity: float = 1) -> str:
    return (f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" fill="{colour}" '
            f'opacity="{opacity}"/>')


def text(x: float, y: float, words: str, colour: str = "#333") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{colour}">{escape(words)}</text>'
