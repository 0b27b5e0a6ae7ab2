# SPDX-License-Identifier: Apache-2.0
"""Read the suites and their reports, and say of each check what it came to: pure functions."""

import dataclasses
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

PASSED, FAILED = "passed", "failed"
MIN_REQ = "min_req"
OWN = "AssertionError: Validation failed: "  # how the failure of a whole check begins


@dataclasses.dataclass(frozen=True)
class Result:
    """:ivar test_id: of the suite's test plan
    :ivar required: it is one of the minimum requirements
    :ivar result: ``passed``, ``failed``, ``not applicable`` or ``not provided yet``
    :ivar reason: of all but what passed
    """

    suite: str
    check: str
    test_id: str
    required: bool
    result: str
    reason: str = ""


def declared(suite: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the checks of a suite: name -> what it says of one."""
    return {name: check for group in suite["tests"]["validations"].values() for name, check in group["checks"].items()}


def reported(junit: str) -> dict[str, tuple[str, str]]:
    """Return what a report of JUnit says: name -> passed, failed or skipped, and the message.

    Parts of a check have ``::`` in their names. A part that failed is in the case of the whole, too, which may have
    passed by its other parts: it failed if its case has more than these."""
    cases = [(case.get("name", ""), [*case.findall("failure"), *case.findall("error")], case.find("skipped"))
             for case in ET.fromstring(junit).iter("testcase")]  # noqa: S314 (a report that the suite just wrote)
    parts = Counter(name.partition("::")[0] for name, bad, _ in cases if "::" in name and bad)
    found = {}
    for name, bad, skipped in cases:
        message = (bad[-1].get("message") or bad[-1].text or "").partition("\nOutput:")[0] if bad else ""
        if len(bad) > parts[name] or message.startswith(OWN):  # the last one is that of the whole check
            found[name] = (FAILED, message.removeprefix(OWN))
        elif skipped is not None:
            found[name] = ("skipped", skipped.get("message") or "")
        else:
            found[name] = (PASSED, "")
    return {name: outcome for name, outcome in found.items() if "::" not in name}


def left_out(reasons: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
    """Return check -> result and reason."""
    return {check: (entry["result"], entry["reason"]) for entry in reasons for check in entry["checks"]}


def judge(name: str, suite: Mapping[str, Any], junit: str, excluded: Mapping[str, tuple[str, str]]) -> list[Result]:
    """Return the result of each check of a suite. One that was skipped without a reason of ours has failed."""
    outcomes = reported(junit)
    results = []
    for check, says in declared(suite).items():
        result, reason = excluded.get(check) or outcomes.get(check, (FAILED, "the report does not have it"))
        if result == "skipped":
            result, reason = FAILED, f"skipped: {reason}"
        results.append(Result(name, check, says["test_id"], MIN_REQ in says["labels"], result, reason.strip()))
    return results


def overlay(suite: Mapping[str, Any], excluded: Iterable[str], system: str) -> dict[str, Any]:
    """Return a configuration that leaves checks out, and expects another operating system than the suite's."""
    def expecting(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: system if key == "expected_os" else expecting(inner) for key, inner in value.items()}
        return [expecting(inner) for inner in value] if isinstance(value, list) else value

    own = sorted(declared(suite).keys() & set(excluded))
    return {"tests": {"exclude": {"tests": own}, "validations": expecting(suite["tests"]["validations"])}}


def counts(results: Sequence[Result]) -> dict[str, int]:
    return dict(Counter(result.result for result in results))


def line(results: Sequence[Result]) -> str:
    """Return how many came to what, those of the minimum requirements in parentheses."""
    required = counts([result for result in results if result.required])
    return ", ".join(f"{number} {kind} ({required.get(kind, 0)})" for kind, number in sorted(counts(results).items()))
