# SPDX-License-Identifier: Apache-2.0
"""Run every probe in a directory, with their output as one message."""

import dataclasses
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from containerhost.linux.run import end

LIMIT = 90  # seconds; a probe's own requests have shorter limits
LEFT_BY_PACKAGES = (".rpmnew", ".rpmsave", ".dpkg-old", ".dpkg-new", ".dpkg-dist")


@dataclasses.dataclass(frozen=True)
class Found:
    """Hold the output of one probe, or of all probes in a directory, or the reason of a failure."""

    success: bool
    text: str


def run(directory: Path, argv: Sequence[str], stdin: bytes, limit: float = LIMIT) -> Found:
    """Run all probes of a directory.

    :param argv: every probe's arguments
    :param limit: seconds for each
    """
    printed = []
    for program in programs(directory):
        found = run_one(program, argv, stdin, limit)
        if not found.success:
            return found
        printed.append(found.text)
    return Found(True, "\n".join(filter(None, printed)))


def programs(directory: Path) -> list[Path]:
    """Return the programs in a directory; none if it is missing."""
    try:
        entries = sorted(directory.iterdir())
    except FileNotFoundError:
        return []
    return [entry for entry in entries
            if entry.is_file() and os.access(entry, os.X_OK) and entry.suffix not in LEFT_BY_PACKAGES]


def run_one(program: Path, argv: Sequence[str], stdin: bytes, limit: float) -> Found:
    try:
        process = subprocess.Popen([program, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, start_new_session=True)
    except OSError as error:
        return Found(False, f"{program.name} cannot be run: {error}")
    try:
        out, err = process.communicate(stdin, timeout=limit)
    except subprocess.TimeoutExpired:
        end(process)
        return Found(False, f"{program.name} did not end within {limit:g} s")
    if process.returncode != 0:
        return Found(False, f"{program.name} failed: {' '.join(err.decode(errors='replace').split())}")
    return Found(True, out.decode(errors="replace").strip())
