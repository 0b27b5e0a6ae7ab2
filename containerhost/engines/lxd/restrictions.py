# SPDX-License-Identifier: Apache-2.0
"""Compare what a restricted project permits with what containers need. Pure.

Keys and defaults: "Project restrictions" in the documentation of LXD and Incus.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Need(NamedTuple):
    """Hold the value that one key of a restricted LXD project needs for containers."""

    value: str
    purpose: str


# Each is blocked by default, and LXD's error names only one of them.
NEEDS: Mapping[str, Need] = {
    "restricted.containers.lowlevel": Need("allow", "memory of NUMA nodes, limits of control groups"),
    "restricted.devices.disk": Need("allow", "config drives, shared memory"),
    "restricted.devices.gpu": Need("allow", "GPUs, their slices and libraries"),
    "restricted.devices.nic": Need("allow", "ports, virtual functions"),
    "restricted.devices.unix-block": Need("allow", "volumes"),
    "restricted.devices.unix-char": Need("allow", "nodes of GPUs and RDMA devices"),
    "restricted.snapshots": Need("allow", "images and snapshots of containers"),
}
# Lists that permit everything when empty.
LISTS: Mapping[str, str] = {"restricted.devices.disk.paths": "config drives, shared memory",
                            "restricted.networks.access": "bridges, virtual functions"}
TRUE = frozenset({"true", "1", "yes", "on"})  # LXD's forms of true


def forbidden(config: Mapping[str, str]) -> Mapping[str, Need]:
    """Return the keys that must change, with their needs; empty if the project permits all."""
    if config.get("restricted", "").lower() not in TRUE:
        return {}
    found = {key: need for key, need in NEEDS.items() if config.get(key) != need.value}
    return found | {key: Need("", purpose) for key, purpose in LISTS.items() if config.get(key)}


def in_words(project: str, keys: Mapping[str, Need]) -> str:
    """Describe what is forbidden, with the command that permits it."""
    purposes = "; ".join(f"{key} ({need.purpose})" for key, need in keys.items())
    command = " ".join(f"{key}={need.value}" for key, need in keys.items())
    return (f"project {project} is restricted and forbids what containers need: {purposes}. "
            f"Permit it: lxc project set {project} {command}")
