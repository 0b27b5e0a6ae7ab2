# SPDX-License-Identifier: Apache-2.0
"""Translate LXD's documents of instances and of their states. Pure."""

import datetime
from collections.abc import Mapping
from typing import Any

from containerhost.engines.contract import ContainerState, InterfaceMetrics, Metrics, Status
from containerhost.engines.lxd.config import OWN_CORES, RESERVED_CORES
from containerhost.linux.idlist import id_list

# LXD's status codes (rest-api document, "List of current status codes").
STATUSES: Mapping[int, Status] = {
    102: Status.STOPPED,
    103: Status.RUNNING,
    106: Status.STARTING,
    107: Status.STOPPING,
    110: Status.FROZEN,
    112: Status.ERROR,
    113: Status.RUNNING,  # "Ready": reported by the guest
}

DAY_ONE = datetime.datetime(1970, 1, 2, tzinfo=datetime.UTC)  # LXD's timestamp for "never" is earlier


def container_state(instance: Mapping[str, Any]) -> ContainerState:
    return ContainerState(
        name=instance["name"],
        status=STATUSES.get(instance["status_code"], Status.ERROR),
        labels={key.removeprefix("user."): value for key, value in instance["config"].items()
                if key.startswith("user.")},
        last_used=moment(instance.get("last_used_at")),
        interfaces={device["name"]: device.get("parent", "") for device in (instance.get("devices") or {}).values()
                    if device["type"] == "nic" and "name" in device},
        cores=id_list(instance["config"].get(OWN_CORES)),
        reserved=id_list(instance["config"].get(RESERVED_CORES)),
    )


def moment(text: str | None) -> datetime.datetime | None:
    """Parse LXD's RFC 3339 time; None for its "never", which is a day of year 1 or of 1970."""
    when = datetime.datetime.fromisoformat(text) if text else DAY_ONE
    return when if when > DAY_ONE else None


def metrics(state: Mapping[str, Any]) -> Metrics:
    """Return the metrics of LXD's instance state document."""
    memory = state.get("memory") or {}
    pid = state.get("pid") or 0
    return Metrics(
        status=STATUSES.get(state["status_code"], Status.ERROR),
        pid=pid if pid > 0 else None,
        processes=max(0, state.get("processes") or 0),
        cpu_time=max(0, (state.get("cpu") or {}).get("usage", 0)),
        memory=memory.get("usage", 0),
        memory_peak=memory.get("usage_peak", 0),
        swap=memory.get("swap_usage", 0),
        disks={name: disk["usage"] for name, disk in (state.get("disk") or {}).items()},
        interfaces=tuple(interface_metrics(name, entry) for name, entry in sorted((state.get("network") or {}).items())
                         if entry.get("type") != "loopback"),
    )


def interface_metrics(name: str, entry: Mapping[str, Any]) -> InterfaceMetrics:
    counters = entry["counters"]
    return InterfaceMetrics(
        name=name,
        mac=entry["hwaddr"],
        host_name=entry.get("host_name") or None,
        received_bytes=counters["bytes_received"],
        received_packets=counters["packets_received"],
        received_errors=counters.get("errors_received", 0),
        received_dropped=counters.get("packets_dropped_inbound", 0),
        sent_bytes=counters["bytes_sent"],
        sent_packets=counters["packets_sent"],
        sent_errors=counters.get("errors_sent", 0),
        sent_dropped=counters.get("packets_dropped_outbound", 0),
    )
