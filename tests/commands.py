"""Commands that the tests put in the path of what they test."""

from pathlib import Path


def script(file: Path, command: str) -> None:
    """Make a shell script that hands its arguments to a command."""
    file.write_text(f'#!/bin/sh\n{command} "$@"\n')
    file.chmod(0o755)
