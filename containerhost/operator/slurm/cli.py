# SPDX-License-Identifier: Apache-2.0
"""Provide the commands ``containerhost slurm``."""

import dataclasses
import json
import socket
from pathlib import Path
from typing import TextIO

import click

from containerhost.inventory import topology as processors
from containerhost.inventory.scan import scan
from containerhost.linux.sysfs import Host
from containerhost.operator import clioptions
from containerhost.operator.reports import choices
from containerhost.operator.runtimes import cdi
from containerhost.operator.slurm import config

_node = click.option("--node", envvar="SLURMD_NODENAME", metavar="NAME",
                     default=lambda: socket.gethostname().partition(".")[0],
                     help="Slurm's name of this host, if not its own; or what SLURMD_NODENAME says.")


@click.group()
def slurm() -> None:
    """Share this host's devices with Slurm: write its configuration, and allocate devices to its jobs."""


@slurm.command()
@_node
@clioptions.as_json
@clioptions.root
def gres(node: str, as_json: bool, root: Path) -> None:
    """Print gres.conf: this host's GPUs as `gpu`, its network functions as `nic`, with the cores near them."""
    host = Host(root)
    grants = cdi.grants(scan(host).devices)
    links = choices.links(grant.device.id for grant in grants if grant.gpu) if host.live else {}
    found = config.gres(grants, processors.read(host), links)
    if as_json:
        click.echo(json.dumps({"node": node, "gres": config.counted(found),
                               "devices": [dataclasses.asdict(each) for each in found]}, indent=1))
    else:
        click.echo(config.gres_conf(found, node))


@slurm.command()
@click.argument("tree", type=click.File(), default="-")
def topology(tree: TextIO) -> None:
    """Print topology.conf for the network TREE, a file or the input.

    It has a line for each host: its name, then the parts of the network above it, the largest first: `node17 r2
    r2s1`."""
    click.echo(config.topology_conf(config.leaves(tree)))
