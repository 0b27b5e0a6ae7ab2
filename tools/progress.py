# SPDX-License-Identifier: Apache-2.0
"""Shows a subunit stream from standard input as it comes: a line for each test that ended, and why one failed.

    stestr run --subunit | tee FILE | python tools/progress.py NAME

A failed test keeps megabytes of its services' logs; only their end is shown, the rest is in the stream.
"""

import sys
from collections.abc import Mapping
from typing import Any

import subunit
import testtools

LOG_LINES = 25
WORDS = {"success": "ok", "xfail": "ok", "skip": "skipped"}


def seconds(test: Mapping[str, Any]) -> str:
    start, end = test["timestamps"]
    return f"{(end - start).total_seconds():6.1f} s" if start and end else " " * 8


def details(test: Mapping[str, Any]) -> str:
    """Return the traceback whole, of every log the end."""
    parts = []
    for name, detail in sorted(test["details"].items(), key=lambda item: "traceback" in item[0]):
        lines = detail.as_text().strip().splitlines()
        kept = lines if "traceback" in name else lines[-LOG_LINES:]
        if kept:
            parts.append("\n".join([f"  -- {name}", *(f"  {line[:400]}" for line in kept)]))
    return "\n".join(parts)


def line(suite: str, test: Mapping[str, Any]) -> str:
    word = WORDS.get(test["status"], "FAILED")
    shown = f"{suite}: {word:7} {seconds(test)}  {test['id']}"
    return f"{shown}\n{details(test)}" if word == "FAILED" else shown


def main() -> int:
    suite = sys.argv[1]

    def show(test: dict[str, Any]) -> None:
        if test["status"] != "exists":
            print(line(suite, test), flush=True)

    result = testtools.StreamToDict(show)
    result.startTestRun()
    subunit.ByteStreamToStreamResult(sys.stdin.buffer, non_subunit_name="stdout").run(result)
    result.stopTestRun()
    return 0


if __name__ == "__main__":
    sys.exit(main())
