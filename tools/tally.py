# SPDX-License-Identifier: Apache-2.0
"""Add up subunit streams: slowest tests, time of each suite, reasons of skips, and the true count last.

    python tools/tally.py [--whole] FILE…     --whole: a suite of which no test ran counts as one that failed

Beside SUITE.subunit a file SUITE.times may have the suite's seconds: elapsed, of the processors as user and as system.
Exits 1 when a test failed or when there was none at all.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

import subunit
import testtools

# A test that never reported an end crashed its runner.
FAILED = {"fail", "uxsuccess", "inprogress", "unknown"}
PASSED = {"success", "xfail"}
SLOWEST = 10


def tests_of(path: Path) -> list[dict]:
    tests: list[dict] = []
    collect = testtools.StreamToDict(tests.append)
    collect.startTestRun()
    with path.open("rb") as stream:
        subunit.ByteStreamToStreamResult(stream, non_subunit_name="stdout").run(collect)
    collect.stopTestRun()
    return [test for test in tests if test["status"] != "exists"]


def skip_reason(test: dict) -> str:
    detail = test["details"].get("reason")
    return detail.as_text().strip() if detail else "no reason given"


def traceback(test: dict) -> str:
    """Once more beside the result: of a long run often only the end is kept."""
    texts = [detail.as_text() for name, detail in test["details"].items() if "traceback" in name]
    return "\n".join(f"  {line[:400]}" for text in texts for line in text.strip().splitlines())


def seconds(test: dict) -> float:
    start, end = test["timestamps"]
    return (end - start).total_seconds() if start and end else 0.0


def slowest(suites: Mapping[str, list[dict]]) -> list[str]:
    """Return a line for each of the slowest tests."""
    tests = [(seconds(test), name, test["id"]) for name, found in suites.items() for test in found]
    return [f"{taken:6.1f} s  {name}: {test}" for taken, name, test in sorted(tests, reverse=True)[:SLOWEST]]


def times(files: list[Path], suites: Mapping[str, list[dict]]) -> list[str]:
    """Return a line for each suite with a file of times, the longest first."""
    measured = []
    for file in files:
        if (written := file.with_suffix(".times")).exists():
            elapsed, user, system = map(float, written.read_text().split())
            measured.append((elapsed, user + system, len(suites[file.stem]), file.stem))
    return [f"{elapsed:6.0f} s  {processors:6.0f} s of processors  {count:5} tests  {name}"
            for elapsed, processors, count, name in sorted(measured, reverse=True)]


def main() -> int:
    files = [Path(name) for name in sys.argv[1:] if name != "--whole"]
    suites = {file.stem: tests_of(file) for file in files}
    tests = [test for found in suites.values() for test in found]
    empty = [name for name, found in suites.items() if not found] if "--whole" in sys.argv else []
    skipped = [test for test in tests if test["status"] == "skip"]
    failed = [test for test in tests if test["status"] in FAILED]
    passed = [test for test in tests if test["status"] in PASSED]
    print("\n".join(["the slowest tests:", *slowest(suites), "the suites:", *times(files, suites)]))
    for test in skipped:
        print(f"skipped: {test['id']}: {skip_reason(test)}")
    for test in failed:
        print(f"failed: {test['id']}\n{traceback(test)}")
    for name in empty:
        print(f"failed: none of the suite {name} ran: can its modules be imported?")
    print(f"{len(passed)} passed, {len(failed) + len(empty)} failed, {len(skipped)} skipped")
    return 1 if failed or empty or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
