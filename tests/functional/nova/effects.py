# SPDX-License-Identifier: Apache-2.0
"""Describe the effects of calls outside of nova-compute: remains of a kill differ only where these differ."""

from collections.abc import Mapping
from typing import Any

REQUEST = "LxdClient.request"
WAIT = "wait"  # last segment of the path of requests that wait for LXD's operations


def effect(call: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> str | None:
    """Return what a call changes; None where it only reads. An operation of LXD has two effects: its start, its end.

    :param call: ``CLASS.METHOD`` or ``MODULE.FUNCTION``
    """
    if call != REQUEST:
        return call
    _, method, *path = arguments
    if method != "get":
        return f"{method} {options['asked']}"
    return f"end of {options['asked']}" if path[-1:] == [WAIT] else None
