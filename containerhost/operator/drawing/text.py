# SPDX-License-Identifier: Apache-2.0
"""Write the map of a host as a tree of text. Pure."""

from collections.abc import Iterator, Sequence

from containerhost.devices.model import Kind
from containerhost.linux.idlist import id_text
from containerhost.operator.drawing.hostmap import Card, Group, HostMap, Node, Part, Status
from containerhost.operator.reports.report import printable

_GIBIBYTE = 1 << 30


def write(found: HostMap) -> str:
    return "\n".join(map(printable, _lines(found)))


def _lines(found: HostMap) -> Iterator[str]:
    yield found.title
    for node in found.nodes:
        yield head(node)
        yield from _tree([*_cores(node), *(tuple(_group(group)) for group in node.groups)])


def head(node: Node) -> str:
    """Return the heading of a node."""
    if node.id is None:
        return "NUMA node unknown"
    socket = "" if node.socket is None else f", socket {node.socket}"
    return f"NUMA node {node.id}{socket}, {node.memory / _GIBIBYTE:.0f} GiB"


def _cores(node: Node) -> Iterator[Sequence[str]]:
    threads = [thread for core in node.cores for thread in core.threads]
    if threads:
        pinned: dict[str, list[int]] = {}
        for cpu, owner in threads:
            if owner:
                pinned.setdefault(owner, []).append(cpu)
        yield (f"CPUs {id_text(cpu for cpu, _ in threads)}",
               *_tree([(f"{owner}: {id_text(cpus)}",) for owner, cpus in sorted(pinned.items())]))


def _group(group: Group) -> Iterator[str]:
    yield f"PCIe switch {group.switch}" if group.switch else f"host bridge {group.bridge}"
    yield from _tree([tuple(_card(card)) for card in group.cards])


def _card(card: Card) -> Iterator[str]:
    links = ", ".join(f"{count} links to {peer}" for peer, count in card.links)
    kind = "network" if card.kind is Kind.NET else "GPU"
    about = " ".join((*card.about, *((f"({links})",) if links else ())))
    yield f"{kind} {card.title}, {about}: {_state(card)}{''.join(f'; {trouble}' for trouble in card.trouble)}"
    yield from _tree([(f"{part.label} {part.id}: {_state(part)}",) for part in card.parts])


def _state(one: Card | Part) -> str:
    if one.status is Status.HELD:
        return str(one.owner)
    return f"{one.status} ({one.owner})" if one.owner else one.status


def _tree(branches: Sequence[Sequence[str]]) -> Iterator[str]:
    for number, (first, *rest) in enumerate(branches, start=1):
        last = number == len(branches)
        yield f"{'└' if last else '├'}─ {first}"
        yield from (f"{' ' if last else '│'}  {line}" for line in rest)
