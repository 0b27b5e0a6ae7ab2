# SPDX-License-Identifier: Apache-2.0
"""Define the findings of a check of the host: a problem and its remedy."""

import dataclasses
import enum


class Severity(enum.StrEnum):
    """Rank how serious a finding of a host check is.

    ``wrong``: a feature does not work, or is not safe. ``note``: it works, but could work better.
    """

    WRONG = "wrong"
    NOTE = "note"


@dataclasses.dataclass(frozen=True, order=True)
class Finding:
    """Describe a problem that a check of the host found, and its remedy."""

    severity: Severity
    check: str
    subject: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.problem}; {self.remedy}"


def wrong(check: str, subject: str, problem: str, remedy: str) -> Finding:
    return Finding(Severity.WRONG, check, subject, problem, remedy)


def note(check: str, subject: str, problem: str, remedy: str) -> Finding:
    return Finding(Severity.NOTE, check, subject, problem, remedy)
