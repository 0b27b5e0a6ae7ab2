"""The administrator's options of a node: a TOML file, ``/etc/lxdone.toml`` unless $LXDONE_CONF names another."""

import dataclasses
import os
from pathlib import Path

from onedriver.node import options

USUAL = Path("/etc/lxdone.toml")


@dataclasses.dataclass(frozen=True)
class Options:
    """:ivar endpoint: LXD's socket or https address; empty looks in the usual places
    :ivar project: LXD's project for the containers
    :ivar storage_pool: LXD's storage pool for root disks
    :ivar datastores: folder of OpenNebula's datastores on this node
    :ivar state: folder of what the driver keeps for each VM
    :ivar owners: folder of the records that say which container has which device; all drivers of the node share it
    :ivar stop_timeout: seconds a guest may take to shut down by itself
    :ivar request_timeout: seconds LXD may be silent
    :ivar operation_timeout: seconds an operation of LXD may take
    :ivar exec_timeout: seconds a command of ``onevm exec`` may take; then it is killed
    :ivar allow_nesting: whether LXD_SECURITY_NESTING=YES is honoured
    :ivar allow_privileged: whether LXD_SECURITY_PRIVILEGED=YES is honoured
    :ivar memlock: locked-memory limit of containers with RDMA: ``unlimited`` or bytes
    :ivar management_nodes: give umad and issm with InfiniBand functions
    :ivar gpu_capabilities: which of the GPU driver's libraries come with a GPU (``compute``, ``utility``…)
    :ivar pci_filter: which devices the host probe reports: ``VENDOR:DEVICE:CLASS``, an asterisk for any
    """

    endpoint: str = ""
    project: str = ""
    storage_pool: str = "default"
    datastores: str = "/var/lib/one/datastores"
    state: str = "/var/lib/lxdone"
    owners: str = "/var/lib/containerhost/owners"
    stop_timeout: int = 120
    request_timeout: int = 30
    operation_timeout: int = 300
    exec_timeout: int = 3600
    allow_nesting: bool = False
    allow_privileged: bool = False
    memlock: str = "unlimited"
    management_nodes: bool = False
    gpu_capabilities: tuple[str, ...] = ()
    pci_filter: tuple[str, ...] = ("*:*:*",)


def load(path: Path | None = None) -> Options:
    """:raises BadOptions: the file cannot be read, or says something that is no option"""
    return options.load(Options, path or Path(os.environ.get("LXDONE_CONF", USUAL)))
