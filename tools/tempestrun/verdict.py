# SPDX-License-Identifier: Apache-2.0
"""Count the results in the stream; report them in a few lines and as JSON."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.tally import FAILED, PASSED, skip_reason, tests_of


@dataclasses.dataclass(frozen=True)
class Verdict:
    """:ivar failed: test -> the last line of its traceback
    :ivar skipped: test -> why Tempest itself left it out
    :ivar excluded: test -> why this project leaves it out
    """

    passed: tuple[str, ...]
    failed: Mapping[str, str]
    skipped: Mapping[str, str]
    excluded: Mapping[str, str]

    @property
    def ok(self) -> bool:
        """Return whether something ran and nothing failed."""
        return bool(self.passed) and not self.failed

    def line(self) -> str:
        return (f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.skipped)} skipped, "
                f"{len(self.excluded)} excluded")

    def to_dict(self) -> dict[str, Any]:
        return {"counts": {name: len(getattr(self, name)) for name in ("passed", "failed", "skipped", "excluded")},
                **dataclasses.asdict(self)}


def read(stream: Path, excluded: Mapping[str, str]) -> Verdict:
    """:param stream: subunit, as ``stestr run --subunit`` writes it"""
    tests = tests_of(stream)
    return Verdict(
        passed=tuple(sorted(name_of(test["id"]) for test in tests if test["status"] in PASSED)),
        failed={name_of(test["id"]): last_line(test) for test in tests if test["status"] in FAILED},
        skipped={name_of(test["id"]): skip_reason(test) for test in tests if test["status"] == "skip"},
        excluded=excluded)


def name_of(test: str) -> str:
    """Without the attributes that Tempest adds: ``…test_it[id-…,smoke]``."""
    return re.sub(r"\[.*", "", test)


def last_line(test: Mapping[str, Any]) -> str:
    for name, detail in test["details"].items():
        if "traceback" in name:
            return (detail.as_text().strip().splitlines() or [""])[-1][:400]
    return "it never ended"
