# SPDX-License-Identifier: Apache-2.0
"""Read the drivers' marks about changeable resources of a container: JSON objects in labels. Pure."""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from containerhost.linux import records

RESOURCES = "containerhost.resources"  # label with the document of a container's resources

Content = TypeVar("Content")


def read(labels: Mapping[str, str], label: str, values: Callable[[Any], Content]) -> Content | None:
    """Return the content of a mark; None if there is none.

    :param values: takes it from the JSON object
    :raises ValueError: this release does not support it
    """
    text = labels.get(label)
    if text is None:
        return None
    try:
        found = json.loads(text)
        records.version(found)
        return values(found)
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"mark {label} is not of this project: {text[:200]!r}") from error


def contradiction(labels: Mapping[str, str], label: str) -> ValueError:
    return ValueError(f"mark {label} contradicts itself: {labels[label][:200]!r}")
