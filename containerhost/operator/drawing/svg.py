# SPDX-License-Identifier: Apache-2.0
"""Draw the map of a host as SVG. Pure.

The XML library escapes text, from which control characters are removed, so names of cards and containers cannot
inject markup. Lengths are pixels.
"""

from collections.abc import Sequence
from xml.etree import ElementTree

from containerhost.devices.model import Kind
from containerhost.operator.drawing.hostmap import Card, Core, Group, HostMap, Node, Part, Status
from containerhost.operator.drawing.text import head
from containerhost.operator.reports.report import printable

PANEL, COLUMNS = 660, 2  # width of a NUMA node, and number of nodes side by side
MARGIN, PAD, GAP = 24, 16, 12
CORE, CORE_GAP = 15, 3
BOX = (PANEL - 2 * PAD - GAP) // 2  # width of a group; a panel has two columns
CARD_HEAD, LINE = 44, 15  # height of a card without parts, and of a line of text
CHIP, CHIP_HEIGHT, CHIP_GAP = 62, 18, 5
FONT = "DejaVu Sans, Helvetica, Arial, sans-serif"
LETTER = 0.6  # width of a character of that font, relative to its size
BOLD = 1.15  # relative width of bold characters
STATE = 108  # width of a card's state or container; fits nova's names (instance-0000002a)

INK, FAINT, LINE_COLOR, PAPER, PANEL_FILL, GROUP_FILL = "#1f2933", "#5b6774", "#c3ccd6", "#ffffff", "#f6f8fa", "#dfe6ee"
FILLS = {Status.FREE: "#ffffff", Status.HELD: "#dce9f9", Status.HOST: "#e9ecf0", Status.CLEANING: "#fff3c9",
         Status.BLOCKED: "#ffd9a8", Status.SICK: "#ffd4d4"}
EDGES = {Status.FREE: "#3f9b5f", Status.HELD: "#4a6fa5", Status.HOST: "#8a94a0", Status.CLEANING: "#c9a200",
         Status.BLOCKED: "#d97700", Status.SICK: "#c92a2a"}
# Colors of containers: light enough for dark text, and distinct from the colors of faults.
OWNERS = ("#8fc1ff", "#a9e0a1", "#dcaaf0", "#86dcd6", "#cdbb95", "#b3b0ff", "#c5e06c", "#f3b3e0", "#9fb8c9", "#d9d0ff")

Element = ElementTree.Element


class Drawing:
    """Build a picture; later elements cover earlier ones."""

    def __init__(self, owners: Sequence[str]) -> None:
        self.root = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "font-family": FONT})
        self._colors = {owner: OWNERS[number % len(OWNERS)] for number, owner in enumerate(owners)}

    def color(self, owner: str | None, otherwise: str) -> str:
        return self._colors.get(owner, otherwise) if owner else otherwise

    def box(self, x: float, y: float, width: float, height: float, fill: str, edge: str, radius: float = 6,
            tip: str = "", stroke: float = 1) -> None:
        """Draw a rectangle."""
        shape = ElementTree.SubElement(self.root, "rect", {
            "x": f"{x:g}", "y": f"{y:g}", "width": f"{width:g}", "height": f"{height:g}", "rx": f"{radius:g}",
            "fill": fill, "stroke": edge, "stroke-width": f"{stroke:g}"})
        if tip:
            ElementTree.SubElement(shape, "title").text = printable(tip)

    def text(self, x: float, y: float, text: str, size: float = 11, color: str = INK, bold: bool = False,
             width: float | None = None, middle: bool = False) -> None:
        """Write a line."""
        shown = fitted(printable(text), size * BOLD if bold else size, width)
        attributes = {"x": f"{x:g}", "y": f"{y:g}", "font-size": f"{size:g}", "fill": color}
        if bold:
            attributes["font-weight"] = "bold"
        if middle:
            attributes["text-anchor"] = "middle"
        ElementTree.SubElement(self.root, "text", attributes).text = shown

    def finish(self, width: float, height: float) -> Element:
        size = {"width": f"{width:g}", "height": f"{height:g}", "viewBox": f"0 0 {width:g} {height:g}"}
        self.root.attrib.update(size)
        return self.root


def fitted(text: str, size: float, width: float | None) -> str:
    """Return text truncated to the width, with an ellipsis."""
    most = len(text) if width is None else max(1, int(width / (size * LETTER)))
    return text if len(text) <= most else text[:most - 1] + "…"


def draw(found: HostMap) -> bytes:
    """Return the picture as an SVG file."""
    return ElementTree.tostring(element(found), encoding="utf-8", xml_declaration=True)


def element(found: HostMap) -> Element:
    """Return the picture as an element, which HTML pages can embed."""
    drawing = Drawing(found.owners)
    columns = min(COLUMNS, max(1, len(found.nodes)))
    width = 2 * MARGIN + columns * PANEL + (columns - 1) * GAP
    ElementTree.SubElement(drawing.root, "rect", {"width": "100%", "height": "100%", "fill": PAPER})
    drawing.text(MARGIN, MARGIN + 14, found.title, 16, bold=True, width=width - 2 * MARGIN)
    bottom = _legend(drawing, found.owners, MARGIN + 38, width - 2 * MARGIN)
    for row in range(0, len(found.nodes), columns):
        top = bottom + GAP
        nodes = found.nodes[row:row + columns]
        heights = [_node(Drawing(()), node, 0, 0) for node in nodes]
        for place, node in enumerate(nodes):
            x = MARGIN + place * (PANEL + GAP)
            drawing.box(x, top, PANEL, max(heights), PANEL_FILL, LINE_COLOR, 10)
            _node(drawing, node, x, top)
        bottom = top + max(heights)
    return drawing.finish(width, bottom + MARGIN)


def _legend(drawing: Drawing, owners: Sequence[str], top: float, width: float) -> float:
    """Draw the legend of the colors; return its end."""
    x, y = float(MARGIN), top
    entries: list[tuple[str, str, str]] = [(status, FILLS[status], EDGES[status]) for status in Status
                                           if status is not Status.HELD]
    entries += [(owner, drawing.color(owner, PAPER), EDGES[Status.HELD]) for owner in owners]
    for label, fill, edge in entries:
        shown = fitted(label, 11, 200)
        needed = 20 + len(shown) * 11 * LETTER + 16
        if x + needed > MARGIN + width:
            x, y = float(MARGIN), y + 22
        drawing.box(x, y, 14, 14, fill, edge, 3, stroke=1.5)
        drawing.text(x + 20, y + 11, shown, 11, FAINT)
        x += needed
    return y + 18


def _node(drawing: Drawing, node: Node, x: float, top: float) -> float:
    """Draw a NUMA node; return its height."""
    drawing.text(x + PAD, top + PAD + 10, head(node), 13, bold=True)
    bottom = _cores(drawing, node.cores, x + PAD, top + PAD + 24)
    ends = [bottom, bottom]
    for group in node.groups:
        column = 0 if ends[0] <= ends[1] else 1
        place = x + PAD + column * (BOX + GAP)
        ends[column] += GAP + _group(drawing, group, place, ends[column] + GAP)
    return max(ends) - top + PAD


def _cores(drawing: Drawing, cores: Sequence[Core], x: float, top: float) -> float:
    """Draw each core as a square divided into its threads; return their end."""
    across = (PANEL - 2 * PAD + CORE_GAP) // (CORE + CORE_GAP)
    for number, core in enumerate(cores):
        left, y = x + number % across * (CORE + CORE_GAP), top + number // across * (CORE + CORE_GAP)
        height = CORE / max(1, len(core.threads))
        for thread, (cpu, owner) in enumerate(core.threads):
            drawing.box(left, y + thread * height, CORE, height, drawing.color(owner, PAPER), LINE_COLOR, 1,
                        f"CPU {cpu}{f': {owner}' if owner else ''}", 0.7)
    rows = -(-len(cores) // across)
    return top + rows * (CORE + CORE_GAP)


def _group(drawing: Drawing, group: Group, x: float, top: float) -> float:
    """Draw a switch or a host bridge with its cards; return its height."""
    title = f"PCIe switch {group.switch}" if group.switch else f"host bridge {group.bridge}"
    heights = [_card_height(card) for card in group.cards]
    height = 26 + sum(heights) + 8 * len(heights)
    drawing.box(x, top, BOX, height, GROUP_FILL if group.switch else PANEL_FILL, LINE_COLOR, 8)
    drawing.text(x + 10, top + 17, title, 10, FAINT)
    y = top + 26
    for card, needed in zip(group.cards, heights, strict=True):
        _card(drawing, card, x + 8, y, needed)
        y += needed + 8
    return height


def _card_lines(card: Card) -> list[tuple[str, str]]:
    """Return the lines below a card's title, with their colors."""
    links = [f"linked to {', '.join(f'{peer} ({count})' for peer, count in card.links)}"] if card.links else []
    return [(" · ".join(card.about), FAINT), *((link, FAINT) for link in links),
            *((trouble, EDGES[Status.SICK]) for trouble in card.trouble[:2])]


def _card_height(card: Card) -> float:
    across = int((BOX - 32 + CHIP_GAP) // (CHIP + CHIP_GAP))
    rows = -(-len(card.parts) // across)
    return CARD_HEAD + (len(_card_lines(card)) - 1) * LINE + rows * (CHIP_HEIGHT + CHIP_GAP) + (4 if rows else 0)


def _card(drawing: Drawing, card: Card, x: float, top: float, height: float) -> None:
    width = BOX - 16
    drawing.box(x, top, width, height, _fill(drawing, card), EDGES[card.status], 6, _tip(card), 1.6)
    badge = "GPU" if card.kind is Kind.GPU else "NIC"
    drawing.text(x + 9, top + 18, badge, 10, EDGES[card.status], bold=True)
    held = card.status is Status.HELD
    state = str(card.owner) if held else card.status
    told = len(fitted(state, 10, STATE)) * 10 * LETTER
    drawing.text(x + 40, top + 18, card.title, 11.5, bold=True, width=width - 58 - told)
    drawing.text(x + width - 9 - told, top + 18, state, 10, INK if held else EDGES[card.status], width=STATE)
    for number, (line, color) in enumerate(_card_lines(card)):
        drawing.text(x + 9, top + 34 + number * LINE, line, 9.5, color, width=width - 18)
    y = top + 34 + (len(_card_lines(card)) - 1) * LINE + 8
    across = int((width - 16 + CHIP_GAP) // (CHIP + CHIP_GAP))
    for number, part in enumerate(card.parts):
        left = x + 8 + number % across * (CHIP + CHIP_GAP)
        row = y + number // across * (CHIP_HEIGHT + CHIP_GAP)
        drawing.box(left, row, CHIP, CHIP_HEIGHT, _fill(drawing, part), EDGES[part.status], 4, _tip(part), 1.2)
        drawing.text(left + CHIP / 2, row + 12.5, part.label, 9, middle=True, width=CHIP - 4)


def _fill(drawing: Drawing, one: Card | Part) -> str:
    return drawing.color(one.owner, FILLS[one.status]) if one.status is Status.HELD else FILLS[one.status]


def _tip(one: Card | Part) -> str:
    return f"{one.id}: {one.status}{f', {one.owner}' if one.owner else ''}"


