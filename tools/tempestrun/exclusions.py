# SPDX-License-Identifier: Apache-2.0
"""The tests that are left out, or run by themselves, each with its reason: ``tools/tempest.d/excluded.yaml``."""

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path

import yaml

FILE = Path(__file__).resolve().parents[1] / "tempest.d" / "excluded.yaml"


@dataclasses.dataclass(frozen=True)
class Exclusion:
    """:ivar regex: found anywhere in the full names of the tests that it leaves out
    :ivar apart: they are run by themselves after the others
    """

    regex: str
    reason: str
    apart: bool = False

    def matches(self, test: str) -> bool:
        return re.search(self.regex, test) is not None


def load(path: Path = FILE) -> tuple[Exclusion, ...]:
    """Load the exclusions.

    :raises ValueError: an entry has no reason, or its expression is none
    """
    found = []
    for entry in yaml.safe_load(path.read_text(encoding="utf-8")) or ():
        regex, reason = entry.get("tests"), entry.get("reason")
        if not regex or not reason:
            raise ValueError(f"{path}: every entry needs 'tests', a regular expression, and 'reason'; found {entry}")
        try:
            re.compile(regex)
        except re.error as error:
            raise ValueError(f"{path}: {regex!r} is not a regular expression: {error}") from error
        found.append(Exclusion(regex, reason, bool(entry.get("apart"))))
    return tuple(found)


def stestr_list(tests: Iterable[str]) -> str:
    """As ``stestr --exclude-list`` and ``--include-list`` read it: it knows a test with its id in brackets behind."""
    return "".join(f"^{re.escape(test)}(\\[|$)\n" for test in tests)


def excluded(tests: Iterable[str], exclusions: Iterable[Exclusion]) -> dict[str, str]:
    """Test -> the reason why it is left out."""
    exclusions = tuple(exclusions)
    return {test: exclusion.reason for test in tests
            for exclusion in reversed(exclusions) if exclusion.matches(test)}
