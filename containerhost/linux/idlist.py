# SPDX-License-Identifier: Apache-2.0
"""Parse and format the kernel's lists, ``0-3,8`` (Documentation/admin-guide/cputopology.rst). Pure."""

from collections.abc import Iterable


def id_list(text: str | None) -> frozenset[int]:
    """Parse the kernel's list format (``0-3,8``) into a set; invalid parts are skipped."""
    found: set[int] = set()
    for part in (text or "").split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if all(bound.isascii() and bound.isdigit() and len(bound) <= 6 for bound in (first, last)):
            found.update(range(int(first), int(last) + 1))
    return frozenset(found)


def id_text(numbers: Iterable[int]) -> str:
    """Format numbers as the kernel's list format: ``0-3,8``."""
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in id_runs(numbers))


def id_runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return numbers as runs of first and last, as in the kernel's list format."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs
