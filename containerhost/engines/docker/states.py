# SPDX-License-Identifier: Apache-2.0
"""Translate Docker's descriptions of containers. Pure."""

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

from containerhost.engines import bounds
from containerhost.engines.contract import ContainerState, Status
from containerhost.engines.docker import config
from containerhost.engines.docker.record import Record

STATUSES: Mapping[str, Status] = {
    "created": Status.STOPPED,
    "exited": Status.STOPPED,
    "running": Status.RUNNING,
    "paused": Status.FROZEN,
    "restarting": Status.STARTING,
    "removing": Status.STOPPING,
    "dead": Status.ERROR,
}


def status_of(container: Mapping[str, Any]) -> Status:
    return STATUSES.get(container["State"]["Status"], Status.ERROR)


def container_state(container: Mapping[str, Any], record: Record | None) -> ContainerState:
    return ContainerState(
        name=bare_name([container["Name"]]), status=status_of(container),
        labels=labels_of(container["Config"]["Labels"], record),
        last_used=moment(container["State"]["StartedAt"]), interfaces=interfaces_of(record or Record()),
        cores=(record or Record()).cores)


def summary_state(summary: Mapping[str, Any], record: Record | None) -> ContainerState:
    """Return the state of an entry of Docker's list, which lacks the time of the last start."""
    return ContainerState(
        name=bare_name(summary["Names"]), status=STATUSES.get(summary["State"], Status.ERROR),
        labels=labels_of(summary["Labels"], record),
        interfaces=interfaces_of(record or Record()), cores=(record or Record()).cores)


def bare_name(names: Sequence[str]) -> str:
    return names[0].removeprefix("/") if names else ""


def interfaces_of(record: Record) -> dict[str, str]:
    return {netdev.name: netdev.host_name for netdev in sorted(record.netdevs)}


def labels_of(labels: Mapping[str, str] | None, record: Record | None) -> dict[str, str]:
    """Return the driver's labels; none if others wrote the label.

    A container of others has no record, and its label is ignored: it may come from its image."""
    if record is not None and record.labels is not None:
        return dict(record.labels)
    try:
        own = json.loads((labels or {}).get(config.LABEL, "{}"))
        return {str(key): str(value) for key, value in own.items() if record is not None or key != bounds.LABEL}
    except (ValueError, AttributeError):
        return {}


def moment(text: str) -> datetime.datetime | None:
    """Parse Docker's RFC 3339 time; None for its "never", which is in year 1."""
    when = datetime.datetime.fromisoformat(text)
    return when if when.year > 1 else None
