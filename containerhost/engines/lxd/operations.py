# SPDX-License-Identifier: Apache-2.0
"""Tell what LXD's running operations are about, and wait for their ends."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from containerhost import errors
from containerhost.engines.lxd.client import LxdClient

LOG = logging.getLogger(__name__)


def wait(client: LxdClient, name: str, which: Callable[[Mapping[str, Any], str], bool]) -> None:
    """Wait for what a caller that was lost has begun: it goes on in LXD.

    :param which: tells which operations on the container ``name`` are meant
    """
    for operation in client.operations():
        if operation["status_code"] < 200 and which(operation, name):
            try:
                client.wait(operation, f"wait for '{operation['description']}' of container {name}")
            except errors.OperationForgotten:
                continue  # it has ended
            except (errors.EngineUnavailable, errors.EngineTimeout):
                raise
            except errors.EngineError as error:
                LOG.info("'%s' of container %s failed by itself: %s", operation["description"], name, error)


def creates(operation: Mapping[str, Any], name: str) -> bool:
    """Return whether an operation makes the instance ``name``."""
    return operation.get("description", "").startswith("Creating") and concerns(operation, name)


def changes(operation: Mapping[str, Any], name: str) -> bool:
    """Return whether an operation works on the instance and will end by itself, unlike a console or a command in it."""
    return operation.get("class") == "task" and concerns(operation, name)


def concerns(operation: Mapping[str, Any], name: str, kinds: Sequence[str] = ("instances", "containers")) -> bool:
    """Return whether an operation is about one of these kinds of LXD's resources that has the name."""
    resources = operation.get("resources") or {}
    urls = (url for kind in kinds for url in resources.get(kind) or ())
    return any(url.partition("?")[0].endswith(f"/{name}") for url in urls)
