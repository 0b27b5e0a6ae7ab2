# SPDX-License-Identifier: Apache-2.0
"""Load the administrator's options of a node: a TOML file, ``/etc/lxdone.toml`` unless $LXDONE_CONF names another."""

import dataclasses
from pathlib import Path

from onedriver.node import options
from onedriver.node.options import NodeOptions

DRIVER = "lxdone"  # the driver's name in OpenNebula and in the allocation records


@dataclasses.dataclass(frozen=True)
class Options(NodeOptions):
    """Hold the options of a node with LXD, in addition to those of every driver.

    :ivar endpoint: LXD's socket or https address; empty searches the default places
    :ivar unpacked_limit: GiB by which the content of a root disk may exceed the disk's SIZE, which for a packed
        image is the packed size
    :ivar packed_root_size: GiB of a root disk with a packed image, unless the template's SIZE exceeds the image's
    :ivar migration_address: ``https://host:port`` at which the LXD daemons of other nodes reach this one; empty
        disables live migrations from here
    :ivar migration_peers: the migration addresses of the nodes whose VMs may arrive by a live migration: LXD trusts
        data from there
    :ivar block_devices: block devices of the host that disks of type BLOCK may use, as patterns of paths; an
        asterisk matches within one name
    """

    state: str = "/var/lib/lxdone"
    project: str = ""
    storage_pool: str = "default"
    allow_nesting: bool = False
    allow_privileged: bool = False
    unpacked_limit: int = 32
    packed_root_size: int = 10
    migration_address: str = ""
    migration_peers: tuple[str, ...] = ()
    block_devices: tuple[str, ...] = ("/dev/vg-one-*/lv-one-*",)


def load(path: Path | None = None) -> Options:
    """Load the options of this node; raise BadOptions if they cannot be read, or contain unknown options."""
    return options.load(Options, path or options.path_of(DRIVER))
