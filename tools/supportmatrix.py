#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes doc/source/support-matrix.md from doc/source/support-matrix.yaml; Sphinx does the same at each build.

    .venv/bin/python tools/supportmatrix.py
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

DIRECTORY = Path(__file__).resolve().parent.parent / "doc" / "source"
SOURCE, PAGE = DIRECTORY / "support-matrix.yaml", DIRECTORY / "support-matrix.md"
STATUSES = ("done", "refused", "not meaningful")

HEAD = """\
# What nova can ask of the driver

Made by `tools/supportmatrix.py` from `support-matrix.yaml`, which a test compares with the driver and with nova: a
method or capability that is not here, or is here and not true, fails it.

"""


def load() -> dict[str, dict[str, dict[str, Any]]]:
    """``methods`` and ``capabilities``, each by name."""
    return yaml.safe_load(SOURCE.read_text(encoding="utf-8"))


def page(matrix: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    methods, capabilities = matrix["methods"], matrix["capabilities"]
    parts = [HEAD, counts(methods), "\n"]
    for status in STATUSES:
        parts += [f"## Methods: {status}\n\n", "| method | |\n|---|---|\n"]
        parts += [f"| `{name}` | {remark(entry)} |\n" for name, entry in methods.items() if entry["status"] == status]
        parts.append("\n")
    parts += ["## Capabilities\n\n", "| capability | | |\n|---|---|---|\n"]
    parts += [f"| `{name}` | {'yes' if entry['value'] else 'no'} | {remark(entry)} |\n"
              for name, entry in capabilities.items()]
    return "".join(parts)


def counts(methods: Mapping[str, Mapping[str, Any]]) -> str:
    statuses = [entry["status"] for entry in methods.values()]
    told = ", ".join(f"{statuses.count(status)} {status}" for status in STATUSES)
    return f"Of {len(methods)} methods: {told}.\n"


def remark(entry: Mapping[str, Any]) -> str:
    told = entry.get("reason") or entry.get("note") or ""
    return f"nova's own: {told}" if entry.get("by") == "nova" and entry.get("status") == "done" else told


def write() -> None:
    PAGE.write_text(page(load()), encoding="utf-8")


if __name__ == "__main__":
    write()
