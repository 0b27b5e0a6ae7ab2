# SPDX-License-Identifier: Apache-2.0
"""Define health rules, and combine findings into a device's health.

Every rule names what is read, when that is bad, how bad, when the device is well again, and who says so.
"""

import dataclasses
import enum
from collections.abc import Iterable
from typing import NamedTuple


class Verdict(enum.StrEnum):
    """Rank how serious a finding about a device's health is.

    ``sick``: the device is given to nobody new. ``note``: it is shown, and the device used on.
    """

    SICK = "sick"
    NOTE = "note"


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """Describe what is read of a device, how bad a finding is, what is reported, and when it ends.

    :ivar reads: the file or the call
    :ivar says: the complaint; ``{...}`` stands for what was found
    :ivar well: when it ends
    :ivar source: where the rule comes from
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

    :ivar complaints: why the device is sick, in words; empty means well
    :ivar notes: what is only worth a look
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
