# SPDX-License-Identifier: Apache-2.0
"""Identify the objects of LXD's running operations, and wait for their ends."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from containerhost import errors
from containerhost.engines.lxd.client import LxdClient

LOG = logging.getLogger(__name__)


def wait(client: LxdClient, name: str, which: Callable[[Mapping[str, Any], str], bool]) -> None:
    """Wait for an operation that a killed caller began and LXD continues."""
    for operation in client.operations():
        if operation["status_code"] < 200 and which(operation, name):
            try:
                client.wait(operation, f"wait for '{operation['description']}' of container {name}")
            except errors.OperationForgotten:
                continue  # it has ended
            except (errors.EngineUnavailable, errors.EngineTimeout):
                raise
            except errors.EngineError as error:
                LOG.info("'%s' of container %s failed: %s", operation["description"], name, error)


def creates(operation: Mapping[str, Any], name: str) -> bool:
    """Return whether an operation creates the instance ``name``."""
    return operation.get("description", "").startswith("Creating") and concerns(operation, name)


def changes(operation: Mapping[str, Any], name: str) -> bool:
    """Return whether an operation changes the instance and ends by itself, unlike a console or command in it."""
    return operation.get("class") == "task" and concerns(operation, name)


def concerns(operation: Mapping[str, Any], name: str, kinds: Sequence[str] = ("instances", "containers")) -> bool:
    """Return whether an operation is about a resource of one of these kinds and this name."""
    resources = operation.get("resources") or {}
    urls = (url for kind in kinds for url in resources.get(kind) or ())
    return any(url.partition("?")[0].endswith(f"/{name}") for url in urls)
