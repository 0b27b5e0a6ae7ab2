# SPDX-License-Identifier: Apache-2.0
"""Run the command ``containerhost``: look at a host the way the drivers do. Needs no privileges but to change
something."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import click

from containerhost import pci_topology, topology, vendors
from containerhost.allocation import sharing
from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.store import DIRECTORY, Allocation, AllocationStore
from containerhost.devices import rdmaports
from containerhost.devices.model import Device
from containerhost.devices.scan import HostView, scan
from containerhost.errors import AllocationsUnreadable, ContainerHostError
from containerhost.privileged import Privileged
from containerhost.reports import allocations, rdmareport, report
from containerhost.reports import doctor as diagnosis
from containerhost.sysfs import Host

_root = click.option("--root", default="/", metavar="DIR",
                     type=click.Path(exists=True, file_okay=False, path_type=Path),
                     help="Read a captured tree DIR/{sys,proc,dev} instead of this host.")
_owners = click.option("--owners", "owners_directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path),
                       help=f"Directory of the allocation records; {DIRECTORY} below the root if not given.")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class Commands(click.Group):
    """Its own commands and those of vendors. Ends with a message and status 1, not with a trace, on every error that
    this project raises."""

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted({*super().list_commands(context), *vendor_commands()})

    def get_command(self, context: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(context, cmd_name) or vendor_commands().get(cmd_name)

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except ContainerHostError as error:
            raise click.ClickException(str(error)) from error


def vendor_commands() -> dict[str, click.Command]:
    return {command.name or "": command for vendor in vendors.load() for command in vendor.commands()}


@click.group(cls=Commands)
def main() -> None:
    """Show one host's devices, topology and health, as containers are given them."""


@main.command("list")
@_json
@_root
@_owners
def list_devices(as_json: bool, root: Path, owners_directory: Path | None) -> None:
    """Show every GPU, GPU slice and network function, its health, its allocation's state, who holds it and since when.
    Of a blocked one, show the reason and what to do about it."""
    inventory = scan(Host(root))
    records = _records(root, owners_directory)
    if as_json:
        # One device a line: as easy to read as indented JSON, and a tenth of its time on a large host.
        rows = (json.dumps(_row(device, records)) for device in inventory.devices)
        click.echo("[" + ",\n ".join(rows) + "]")
    else:
        click.echo(report.devices(inventory, records))


@main.command("topology")
@_json
@_root
def show_topology(as_json: bool, root: Path) -> None:
    """Show processors, memory and NUMA nodes, which devices are near, and what lies between GPUs and network cards."""
    host = Host(root)
    found, inventory = topology.read(host), scan(host)
    connections = pci_topology.connections(inventory, host)
    if as_json:
        told = dataclasses.asdict(found) | {"pci_topology": [dataclasses.asdict(each) for each in connections]}
        click.echo(json.dumps(told, default=sorted, indent=1))
    else:
        click.echo(report.topology(found, inventory))
        between = report.pci_topology(inventory, connections)
        click.echo(f"\n{between}" if between else "", nl=bool(between))


@main.command("rdma")
@_json
@_root
@_owners
def show_rdma(as_json: bool, root: Path, owners_directory: Path | None) -> None:
    """Show every RDMA function: ports, partition keys, GIDs, nodes, the nearest GPUs and who holds it."""
    host = Host(root)
    inventory = scan(host)
    rows = rdmareport.rows(inventory, host, _records(root, owners_directory) or {})
    mode, manager = rdmaports.namespace_mode(host), rdmareport.has_manager(inventory.devices)
    if as_json:
        click.echo(json.dumps({"network_namespaces": mode, "rdma_cm": manager, "devices": rows}, indent=1))
    else:
        click.echo(report.rdma(rows, mode, manager))


@main.command()
@_root
@_owners
def doctor(root: Path, owners_directory: Path | None) -> None:
    """Say what is wrong with this host; status 1 if anything is."""
    host = Host(root)
    inventory = scan(host)
    complaints = [*diagnosis.complaints(inventory, topology.read(host), _directory(root, owners_directory)),
                  *(diagnosis.unlimited(host) if host.live else ()),
                  *sharing.unknown_gpus(sharing.read(host), inventory.devices)]
    for complaint in complaints:
        click.echo(report.printable(complaint))
    if complaints:
        raise SystemExit(1)
    click.echo("no complaints")


@main.command()
@click.argument("device")
@_owners
def unblock(device: str, owners_directory: Path | None) -> None:
    """Free DEVICE, which was blocked because it could not be cleaned and which you have cleaned by hand."""
    store = AllocationStore(_directory(Path("/"), owners_directory))
    with store.working([device]):
        store.free(device)


@main.command()
@click.argument("device")
@_json
@_owners
def scrub(device: str, as_json: bool, owners_directory: Path | None) -> None:
    """Clean DEVICE (a PCI address) as if its container had ended, and free it: one that is blocked because it could not
    be cleaned, or one that is free and sick. Needs root. One that a container has is refused."""
    store = AllocationStore(_directory(Path("/"), owners_directory))
    before = store.records().get(device.lower())
    done = DeviceAllocator(store, HostView, Privileged()).repair.clean(device)
    if as_json:
        click.echo(json.dumps({"device": device, "done": done, "was_blocked": before.blocked if before else None}))
    else:
        click.echo(f"{device} is clean and free: {', '.join(done)}")


def _directory(root: Path, given: Path | None) -> Path:
    return given or root / DIRECTORY.relative_to("/")


def _records(root: Path, given: Path | None) -> dict[str, Allocation] | None:
    """Return the allocations, or None if they cannot be read: a list without them is better than none."""
    try:
        return AllocationStore(_directory(root, given)).records()
    except AllocationsUnreadable as error:
        click.echo(f"owners are not shown: {error}", err=True)
        return None


def _row(device: Device, records: dict[str, Allocation] | None) -> dict[str, Any]:
    return device.to_dict() | allocations.row(device.id, records)
