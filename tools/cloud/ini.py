# SPDX-License-Identifier: Apache-2.0
"""Files as oslo.config reads them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.cloud.layout import write_private

# section -> option -> its value, or the values of an option that may be given several times
Ini = dict[str, dict[str, str | Sequence[str]]]


def write(path: Path, ini: Ini) -> None:
    """Write a file that only root can read: it has passwords."""
    write_private(path, text_of(ini))


def text_of(ini: Mapping[str, Mapping[str, str | Sequence[str]]]) -> str:
    lines = []
    for section, options in ini.items():
        lines.append(f"[{section}]")
        for name, value in options.items():
            lines += [f"{name} = {one}" for one in ([value] if isinstance(value, str) else value)]
        lines.append("")
    return "\n".join(lines)
