# SPDX-License-Identifier: Apache-2.0
"""Provide the commands ``containerhost slurm``."""

import dataclasses
import json
import logging
import os
import socket
from pathlib import Path
from typing import TextIO

import click

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.store import AllocationStore
from containerhost.inventory import topology as processors
from containerhost.inventory.scan import HostView, scan
from containerhost.linux.sysfs import Host
from containerhost.operator import clioptions
from containerhost.operator.reports import choices
from containerhost.operator.runtimes import cdi
from containerhost.operator.runtimes.cli import configured
from containerhost.operator.slurm import config, jobs
from containerhost.operator.slurm.client import Slurm
from containerhost.operator.slurm.jobs import JobDevices
from containerhost.privileged import Privileged

_node = click.option("--node", envvar="SLURMD_NODENAME", metavar="NAME",
                     default=lambda: socket.gethostname().partition(".")[0],
                     help="Slurm's name of this host, if not its own; or what SLURMD_NODENAME says.")
_job = click.option("--job", envvar="SLURM_JOB_ID", required=True, type=click.IntRange(1), metavar="NUMBER",
                    help="The job; or what SLURM_JOB_ID says.")
_cluster = click.option("--cluster", envvar="SLURM_CLUSTER_NAME", required=True, metavar="NAME",
                        help="Its cluster; or what SLURM_CLUSTER_NAME says.")


@click.group()
def slurm() -> None:
    """Share this host's devices with Slurm: write its configuration, and allocate devices to its jobs."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    os.environ.setdefault("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")  # slurmd sets none


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

    TREE has a line for each host: its name, then the parts of the network above it, largest first: `node17 r2 r2s1`."""
    click.echo(config.topology_conf(config.leaves(tree)))


@slurm.command()
@_job
@_cluster
@_node
@clioptions.owners
def prolog(job: int, cluster: str, node: str, owners_directory: Path | None) -> None:
    """Allocate the devices that Slurm chose to a job: for Prolog of slurm.conf. Needs root.

    If another consumer has one of them, a batch job is requeued; any other is cancelled."""
    _devices(node, owners_directory).allocate(str(job), cluster)


@slurm.command()
@_job
@_cluster
@_node
@clioptions.owners
def epilog(job: int, cluster: str, node: str, owners_directory: Path | None) -> None:
    """Clean and free the devices of a job: for Epilog of slurm.conf. Needs root.

    If a device cannot be cleaned, the node is drained with the reason, and the status is 1."""
    if not _devices(node, owners_directory).release(str(job), cluster):
        raise SystemExit(1)


@slurm.command()
@_node
@clioptions.owners
def reconcile(node: str, owners_directory: Path | None) -> None:
    """Free the devices of ended jobs: for HealthCheckProgram of slurm.conf. Needs root.

    A node that `prolog` or `epilog` drained is resumed once its devices are healthy."""
    _devices(node, owners_directory).reconcile()


def _devices(node: str, owners_directory: Path | None) -> JobDevices:
    store = AllocationStore(clioptions.directory(Path("/"), owners_directory))
    allocator = DeviceAllocator(store, HostView, Privileged(), configured,
                                holders=lambda consumer: jobs.processes(consumer.container))
    return JobDevices(store, allocator, Slurm(node))
