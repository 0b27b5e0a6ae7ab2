# SPDX-License-Identifier: Apache-2.0
"""Tell what LXD's running operations are about. Pure."""

from collections.abc import Mapping
from typing import Any


def creates(operation: Mapping[str, Any], name: str) -> bool:
    """Return whether an operation makes the instance ``name``."""
    return operation.get("description", "").startswith("Creating") and concerns(operation, name)


def changes(operation: Mapping[str, Any], name: str) -> bool:
    """Return whether an operation works on the instance and will end by itself, unlike a console or a command in it."""
    return operation.get("class") == "task" and concerns(operation, name)


def concerns(operation: Mapping[str, Any], name: str) -> bool:
    resources = operation.get("resources") or {}
    urls = [*(resources.get("instances") or ()), *(resources.get("containers") or ())]
    return any(url.partition("?")[0].endswith(f"/{name}") for url in urls)
