# SPDX-License-Identifier: Apache-2.0
"""Read what a running OpenNebula 7.4 handed to drivers, as recorded, and change it for a test."""

import json
from pathlib import Path

FOLDER = Path(__file__).parent
ARGV: dict[str, dict[str, list[str]]] = json.loads((FOLDER / "argv.json").read_text())


def sample(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


def changed(name: str, *changes: tuple[str, str]) -> bytes:
    """A sample with texts replaced, each of which must be there."""
    text = sample(name).decode()
    for old, new in changes:
        if old not in text:
            raise AssertionError(f"{name} has no {old!r}")
        text = text.replace(old, new)
    return text.encode()


def template_with(xml: str, name: str = "deployment.xml") -> bytes:
    """A sample whose template has more in it."""
    return changed(name, ("<VMID>", f"{xml}<VMID>"))
