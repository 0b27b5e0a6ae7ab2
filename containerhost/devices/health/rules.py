# SPDX-License-Identifier: Apache-2.0
"""Define health rules, and combine findings into a device's health.

Every rule names its input, its condition, its severity, when the device is healthy again, and its source.
"""

import dataclasses
import enum
from collections.abc import Iterable
from typing import NamedTuple


class Verdict(enum.StrEnum):
    """Rank how serious a finding about a device's health is.

    ``sick``: no new container gets the device. ``note``: it is displayed, and the device stays in use.
    """

    SICK = "sick"
    NOTE = "note"


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """Describe a health rule: its input, its severity, its message, and when the finding ends.

    :ivar reads: the file or the call
    :ivar says: the complaint; ``{...}`` is replaced by the finding
    """

    name: str
    verdict: Verdict
    reads: str
    says: str
    well: str
    source: str

    def finds(self, **found: object) -> "Finding":
        return Finding(self, self.says.format(**found))


class Finding(NamedTuple):
    rule: Rule
    text: str


class Health(NamedTuple):
    """Hold the complaints and notes about a device; ``+`` combines those of two.

    :ivar notes: observations that do not affect its use
    """

    complaints: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __add__(self, other: "Health") -> "Health":  # type: ignore[override]  # not a longer tuple: a sum
        return Health(self.complaints + other.complaints, self.notes + other.notes)


WELL = Health()


def health_of(findings: Iterable[Finding]) -> Health:
    found = tuple(findings)
    if not found:
        return WELL
    return Health(tuple(finding.text for finding in found if finding.rule.verdict is Verdict.SICK),
                  tuple(finding.text for finding in found if finding.rule.verdict is Verdict.NOTE))
