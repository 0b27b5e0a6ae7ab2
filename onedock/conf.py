"""The administrator's options of a node: a TOML file, ``/etc/onedock.toml`` unless $ONEDOCK_CONF names another."""

import dataclasses
import os
from pathlib import Path

from onedriver.node import options

USUAL = Path("/etc/onedock.toml")


@dataclasses.dataclass(frozen=True)
class Options:
    """:ivar endpoint: Docker's socket
    :ivar records: folder of what each container has; the daemon's runtime was given the same
    :ivar datastores: folder of OpenNebula's datastores on this node
    :ivar state: folder of what the driver keeps for each VM
    :ivar owners: folder of the records that say which container has which device; all drivers of the node share it
    :ivar stop_timeout: seconds a program may take to end by itself
    :ivar settle: seconds within which a program's failure is one of its start
    :ivar request_timeout: seconds Docker may be silent
    :ivar operation_timeout: seconds an operation of Docker may take
    :ivar root_quota: whether a root disk is held to its SIZE; Docker's storage must be able to
    :ivar raw_options: which of DOCKER_RAW's options a template may use
    :ivar memlock: locked-memory limit of containers with RDMA: ``unlimited`` or bytes
    :ivar management_nodes: give umad and issm with InfiniBand functions
    :ivar gpu_capabilities: which of the GPU driver's libraries come with a GPU; Docker can bring none
    :ivar pci_filter: which devices the host probe reports: ``VENDOR:DEVICE:CLASS``, an asterisk for any
    """

    endpoint: str = "unix:///run/docker.sock"
    records: str = "/var/lib/containerhost/docker"
    datastores: str = "/var/lib/one/datastores"
    state: str = "/var/lib/onedock"
    owners: str = "/var/lib/containerhost/owners"
    stop_timeout: int = 120
    settle: float = 0.25
    request_timeout: int = 30
    operation_timeout: int = 300
    root_quota: bool = False
    raw_options: tuple[str, ...] = ()
    memlock: str = "unlimited"
    management_nodes: bool = False
    gpu_capabilities: tuple[str, ...] = ()
    pci_filter: tuple[str, ...] = ("*:*:*",)


def load(path: Path | None = None) -> Options:
    """:raises BadOptions: the file cannot be read, or says something that is no option"""
    return options.load(Options, path or Path(os.environ.get("ONEDOCK_CONF", USUAL)))
