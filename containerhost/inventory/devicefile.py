# SPDX-License-Identifier: Apache-2.0
"""Read files in which an operator configures single devices: a YAML mapping of PCI addresses.

Every scalar is read as text: YAML 1.1 would parse 0000:17:00.0 as a number in base sixty.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from containerhost.errors import SpecError

LIMIT = 1 << 20  # bytes
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")


class _Loader(yaml.BaseLoader):
    """Load only texts, lists and mappings, and refuse duplicate keys, one of which would be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        twice = sorted({str(key) for key in keys if keys.count(key) > 1})
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"{', '.join(twice)} is a duplicate "
                                                                "key", node.start_mark)
        return super().construct_mapping(node, deep)


def load(path: Path) -> dict[str, Any]:
    """Return the settings of each device, by address in the kernel's format.

    :raises SpecError: it cannot be read, or is not such a mapping
    """
    try:
        with open(path, "rb") as file:
            data = file.read(LIMIT + 1)
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > LIMIT:
        raise SpecError(f"{path} is larger than {LIMIT} bytes, the limit for a file about a host's devices")
    return parse(data, str(path))


def parse(data: bytes, name: str) -> dict[str, Any]:
    """Parse a file about single devices."""
    try:
        found = yaml.load(data, _Loader)  # noqa: S506  (makes only texts, lists and mappings)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise SpecError(f"{name} is not YAML: {' '.join(str(error).split())}") from error
    if found in (None, ""):
        return {}
    if not isinstance(found, dict):
        raise SpecError(f"{name} is not a mapping: each line must be a PCI address, a colon, and its settings")
    for address in found:
        if not isinstance(address, str) or not ADDRESS.fullmatch(address):
            raise SpecError(f"{name}: {address!r} is not a PCI address as shown by `containerhost list`, such as "
                            "0000:3b:00.0")
    return found
