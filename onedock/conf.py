# SPDX-License-Identifier: Apache-2.0
"""Load the administrator's options of a node: a TOML file, ``/etc/onedock.toml`` unless $ONEDOCK_CONF names another."""

import dataclasses
from pathlib import Path

from onedriver.node import options
from onedriver.node.options import NodeOptions

DRIVER = "onedock"  # its name in OpenNebula and in the allocation records


@dataclasses.dataclass(frozen=True)
class Options(NodeOptions):
    """Hold the options of a node with Docker, beside those of every driver.

    :ivar records: directory of what each container has; the daemon's runtime was given the same
    :ivar start_seconds: seconds within which a program's failure is one of its start, unless it waits for something
    sooner
    :ivar root_quota: whether a root disk is held to its SIZE; Docker's storage must be able to
    :ivar lxcfs: where LXCFS is mounted, for containers to see their own CPUs and memory in /proc; empty is not at all
    :ivar raw_options: which of DOCKER_RAW's options a template may use
    """

    endpoint: str = "unix:///run/docker.sock"
    state: str = "/var/lib/onedock"
    records: str = "/var/lib/containerhost/docker"
    start_seconds: float = 0.25
    root_quota: bool = False
    lxcfs: str = ""
    raw_options: tuple[str, ...] = ()


def load(path: Path | None = None) -> Options:
    """Load the options of this node; raise BadOptions if they cannot be read, or name what is no option."""
    return options.load(Options, path or options.path_of(DRIVER))
