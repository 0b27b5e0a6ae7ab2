# SPDX-License-Identifier: Apache-2.0
"""Load the administrator's options of a node: a TOML file, ``/etc/onedock.toml`` unless $ONEDOCK_CONF names another."""

import dataclasses
from pathlib import Path

from onedriver.node import options
from onedriver.node.options import NodeOptions

DRIVER = "onedock"  # its name in OpenNebula and in the allocation records


@dataclasses.dataclass(frozen=True)
class Options(NodeOptions):
    """Hold the options of a node with Docker, in addition to those of every driver.

    :ivar records: directory of the containers' records, as configured for the daemon's runtime
    :ivar start_seconds: seconds within which a program's failure counts as a failed start, unless it waits for an
        event sooner
    :ivar root_quota: whether a root disk is limited to its SIZE, which Docker's storage must support
    :ivar lxcfs: where LXCFS is mounted, so that containers see their own CPUs and memory in /proc; empty to disable
    :ivar raw_options: options of DOCKER_RAW that a template may use
    """

    endpoint: str = "unix:///run/docker.sock"
    state: str = "/var/lib/onedock"
    records: str = "/var/lib/containerhost/docker"
    start_seconds: float = 0.25
    root_quota: bool = False
    lxcfs: str = ""
    raw_options: tuple[str, ...] = ()


def load(path: Path | None = None) -> Options:
    """Load the options of this node; raise BadOptions if they cannot be read, or contain unknown options."""
    return options.load(Options, path or options.path_of(DRIVER))
