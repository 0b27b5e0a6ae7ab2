# SPDX-License-Identifier: Apache-2.0
"""Validate the metadata of an image that a tenant wrote, and write metadata for LXD (LXD doc, "Image format").

Only the architecture of a tenant's document is used. The rest is validated nevertheless, so that the owner of an
invalid image gets an error immediately. YAML that parsers may read differently (aliases, merge keys, duplicate keys)
is refused.
"""

import io
import re
import tarfile
from typing import Any, Final

import yaml

from containerhost.images.errors import BadImage

ARCHITECTURE: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")
LARGEST: Final = 64 * 1024  # bytes
LAST_SECOND: Final = 253_402_300_799  # the year 9999
DATES: Final = ("creation_date", "expiry_date")


def architecture(raw: bytes) -> str:
    """Return the architecture that a metadata.yaml names.

    :raises BadImage: the document is not what LXD expects; the message completes "Image X is unacceptable: …"
    """
    document = _document(raw)
    name = document.get("architecture")
    if not isinstance(name, str) or not ARCHITECTURE.fullmatch(name):
        raise BadImage("its metadata.yaml names no architecture")
    if "creation_date" not in document:
        raise BadImage("its metadata.yaml has no creation_date")
    for key in DATES:
        date = document.get(key, 1)
        # LXD writes an expiry_date of 0 for never.
        first = 0 if key == "expiry_date" else 1
        # Excludes bool, which is a subclass of int: YAML's true.
        if type(date) is not int or not first <= date <= LAST_SECOND:
            raise BadImage(f"its metadata.yaml has {key} {str(date)[:40]!r}; it must be in seconds since 1970")
    _require_texts(document.get("properties"))
    return name


def _document(raw: bytes) -> dict[Any, Any]:
    if len(raw) > LARGEST:
        raise BadImage(f"its metadata.yaml has {len(raw)} bytes; the limit is {LARGEST}")
    try:
        document = _PlainLoader(raw).get_single_data()
    # PyYAML's constructors of explicit tags (!!bool x) do not translate the exceptions of their lookups.
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        words = " ".join(str(error).split())[:200]
        raise BadImage(f"its metadata.yaml cannot be read: {words}") from error
    if not isinstance(document, dict):
        raise BadImage("its metadata.yaml is not a list of keys and values, so it names no architecture")
    return document


class _PlainLoader(yaml.SafeLoader):
    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise BadImage("its metadata.yaml has an alias (*name); write the value out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = {"<<"}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value in seen:
                raise BadImage(f"its metadata.yaml has the key {str(key.value)[:40]!r}, which is given twice, is "
                               "a merge key or is not text; write each key once")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _require_texts(properties: Any) -> None:
    if properties is None:
        return
    if not isinstance(properties, dict) or any(isinstance(value, dict | list) for value in properties.values()):
        raise BadImage("its metadata.yaml has properties that are not texts by name")


def tarball(architecture: str) -> bytes:
    """Return the metadata half of a split image.

    It has no templates: LXD would write their results as root through links in the image. It has no date, so that
    the same root file system always has the same fingerprint.
    """
    content = f"architecture: {architecture}\ncreation_date: 1\n".encode()
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        member = tarfile.TarInfo("metadata.yaml")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return raw.getvalue()
