# SPDX-License-Identifier: Apache-2.0
"""Version the small JSON records that this project keeps on a host.

A record outlives the release that wrote it: hosts are upgraded and downgraded while containers run, and releases
share a host. So each record has a ``version``, a reader takes the fields it knows and fills in those that an older
release did not write, and a writer keeps unknown fields at the top level of the record.
"""

import dataclasses
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

Record = TypeVar("Record")

VERSION = "version"
UNVERSIONED = 1  # version of records without a version


def version(record: Any) -> int:
    """Return the version of a record.

    :raises ValueError: it is not a JSON object, or its version is not a positive integer
    """
    if not isinstance(record, dict):
        raise ValueError("it is not a JSON object")
    found = record.get(VERSION, UNVERSIONED)
    if type(found) is not int or found < 1:
        raise ValueError(f"its version is {found!r}")
    return found


def unknown(record: Any, known: Collection[str]) -> dict[str, Any]:
    """Return the version of a record and its fields that are not ``known``, for :func:`content`.

    :raises ValueError: as :func:`version`
    """
    found = version(record)
    return {name: value for name, value in record.items() if name not in known} | {VERSION: found}


def content(fields: Mapping[str, Any], own_version: int, rest: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the record to write.

    :param own_version: of the fields that this release knows; a higher one that was read stays
    :param rest: what :func:`unknown` returned for the record that is replaced; None if there is none
    """
    rest = rest or {}
    return {**rest, **fields, VERSION: max(own_version, rest.get(VERSION, UNVERSIONED))}


def replacing(file: Path, fields: Mapping[str, Any], own_version: int) -> str:
    """Return the JSON text to write into a record's file, keeping fields of other releases.

    A file that is missing, or not a record, is replaced completely.

    :param own_version: as :func:`content`
    """
    try:
        rest = unknown(json.loads(file.read_text(encoding="utf-8")), fields)
    except (OSError, ValueError, RecursionError):
        rest = {}
    return json.dumps(content(fields, own_version, rest))


def parsed(kind: type[Record], text: str) -> Record:
    """Create a dataclass from the fields that it has in common with the record.

    :raises ValueError: it is not a record
    :raises TypeError: it lacks a field that has no default
    """
    try:
        record = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    version(record)
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in record.items() if name in names})
