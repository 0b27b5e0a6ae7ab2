# SPDX-License-Identifier: Apache-2.0
"""Commands that the tests put in the path of what they test."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]


def script(file: Path, command: str) -> None:
    """Make a shell script that hands its arguments to a command."""
    file.write_text(f'#!/bin/sh\n{command} "$@"\n')
    file.chmod(0o755)


def python_path() -> str:
    """Return where commands of this repository find their packages, those of a test's own before."""
    return os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))
