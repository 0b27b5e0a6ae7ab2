# SPDX-License-Identifier: Apache-2.0
"""Translate the map of a host to JSON and back. Pure.

The classes of :mod:`containerhost.operator.drawing.hostmap` are the format: an object has their fields by name. The
input comes from another host, so a map is rebuilt from individually validated values; fields of other releases are
ignored.
"""

import dataclasses
import enum
import functools
import types
from typing import Any, get_args, get_origin, get_type_hints

from containerhost.linux import records
from containerhost.operator.drawing.hostmap import HostMap
from containerhost.operator.reports.report import printable

VERSION = 1  # incremented when an older release would misread the document
LONGEST = 1000  # characters of one text
LARGEST = 1 << 62


def dump(found: HostMap) -> dict[str, Any]:
    """Return a value for :func:`json.dumps`."""
    return {records.VERSION: VERSION, **dataclasses.asdict(found)}


def load(raw: Any) -> HostMap:
    """Return the map of a value from :func:`json.loads`.

    :raises ValueError: it is malformed, or of a newer release
    """
    version = records.version(raw)
    if version > VERSION:
        raise ValueError(f"its version is {version}, this release reads none above {VERSION}")
    return HostMap(**_fields(HostMap, raw))


def _fields(kind: Any, raw: Any) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise ValueError(f"a {kind.__name__} is not a JSON object")
    return {name: _value(hint, raw.get(name), f"{kind.__name__}.{name}") for name, hint in _hints(kind).items()}


_hints = functools.cache(get_type_hints)


def _value(hint: Any, raw: Any, where: str) -> Any:
    """Return a validated value of a field's type."""
    found, parts = get_origin(hint), get_args(hint)
    if found is types.UnionType:  # X | None
        return None if raw is None else _value(parts[0], raw, where)
    if found is tuple and isinstance(raw, list):
        of_each = (parts[0],) * len(raw) if parts[1:] == (Ellipsis,) else parts
        if len(of_each) == len(raw):
            return tuple(_value(part, each, where) for part, each in zip(of_each, raw, strict=True))
    if dataclasses.is_dataclass(hint):
        return hint(**_fields(hint, raw))  # type: ignore[operator]  # a data class is a type here, which mypy cannot tell
    if hint is str and isinstance(raw, str) and len(raw) <= LONGEST:
        return printable(raw)
    if hint is int and type(raw) is int and 0 <= raw <= LARGEST:
        return raw
    if isinstance(hint, enum.EnumType) and isinstance(raw, str):
        return hint(raw)
    raise ValueError(f"{where} is {printable(repr(raw)[:40])}")
