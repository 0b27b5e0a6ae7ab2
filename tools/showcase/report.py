# SPDX-License-Identifier: Apache-2.0
"""Report to the reader while the demo works and at its end, and the same as JSON."""

import contextlib
import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from containerhost.operator.drawing import svg, text
from containerhost.operator.drawing.hostmap import HostMap


@dataclasses.dataclass(frozen=True)
class Fact:
    """Something the demo shows.

    :ivar about: the server, or ``cloud``, ``host``, ``placement``
    :ivar claim: what must hold
    :ivar found: what was seen
    """

    about: str
    claim: str
    found: str
    holds: bool


class Report:
    """:param since: when the whole demo began, seconds since the epoch
    """

    def __init__(self, since: float) -> None:
        self._since = since
        self._console = Console(highlight=False)
        if not self._console.is_terminal:
            self._console = Console(highlight=False, width=160)
        self.facts: list[Fact] = []
        self.timings: dict[str, float] = {}
        self.setting: dict[str, Any] = {}
        self.drawing: bytes | None = None

    @property
    def elapsed(self) -> float:
        return time.time() - self._since

    @property
    def ok(self) -> bool:
        """Return whether there are facts and all hold."""
        return bool(self.facts) and all(fact.holds for fact in self.facts)

    def say(self, text: str, style: str = "") -> None:
        """One line of progress."""
        self._console.print(Text(f"[{self.elapsed:6.1f} s] ").append(text, style=style), soft_wrap=True)

    def chapter(self, title: str) -> None:
        self._console.print()
        self.say(title, "bold")

    def command(self, text: str) -> None:
        """Report what a user would type for what happens now."""
        self._console.print(Text(f"             $ {text}", style="cyan"), soft_wrap=True)

    def check(self, about: str, claim: str, found: str, holds: bool) -> bool:
        """Note a fact and show it at once."""
        self.facts.append(Fact(about, claim, found, holds))
        self.say(f"{'ok ' if holds else 'NOT'} {about}: {claim}: {found}", "green" if holds else "bold red")
        return holds

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Keep how many seconds the block took."""
        begun = time.monotonic()
        yield
        self.timings[name] = round(time.monotonic() - begun, 2)

    def summary(self) -> None:
        table = Table(title="What was shown", title_justify="left", show_lines=False)
        table.add_column("about", no_wrap=True)
        table.add_column("claim")
        table.add_column("found", overflow="fold")
        table.add_column("holds", no_wrap=True)
        for fact in self.facts:
            cells = (fact.about, fact.claim, fact.found, "yes" if fact.holds else "NO")
            table.add_row(*map(Text, cells), style="" if fact.holds else "bold red")
        times = Table(title="Seconds", title_justify="left")
        times.add_column("step")
        times.add_column("seconds", justify="right")
        for name, seconds in self.timings.items():
            times.add_row(name, f"{seconds:.1f}")
        times.add_row("everything so far", f"{self.elapsed:.1f}")
        self._console.print()
        self._console.print(table)
        self._console.print(times)

    def picture(self, drawn: HostMap) -> None:
        """Show the host as it is now; :meth:`write_json` also writes it as a drawing."""
        self.drawing = svg.draw(drawn)
        self._console.print(Text(text.write(drawn), style="dim"), soft_wrap=True)

    def write_json(self, path: Path) -> None:
        """Write the facts to a file, and the drawing of the host beside it (``.svg``)."""
        if self.drawing:
            path.with_suffix(".svg").write_bytes(self.drawing)
        path.write_text(json.dumps({
            "ok": self.ok, **self.setting, "facts": [dataclasses.asdict(fact) for fact in self.facts],
            "seconds": {**self.timings, "everything": round(self.elapsed, 2)}}, indent=1) + "\n")
