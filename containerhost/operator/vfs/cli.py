# SPDX-License-Identifier: Apache-2.0
"""Run ``containerhost vfs``: show the virtual functions of network cards, and provision them from a file."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import click

from containerhost.allocation.store import AllocationStore
from containerhost.devices.model import Kind, Role
from containerhost.inventory import devicefile
from containerhost.inventory.scan import Inventory, scan
from containerhost.linux.sysfs import Host
from containerhost.operator import clioptions
from containerhost.operator.reports.report import printable, table
from containerhost.operator.vfs import wanted
from containerhost.operator.vfs.plan import functions_of, in_use
from containerhost.operator.vfs.provisioner import Provisioner

FILE = Path("/etc/containerhost/vfs.yaml")


@click.group(invoke_without_command=True)
@click.pass_context
def vfs(context: click.Context) -> None:
    """Show or provision the virtual functions of network cards (SR-IOV)."""
    if context.invoked_subcommand is None:
        show.main([], parent=context, standalone_mode=False)


@vfs.command()
@clioptions.as_json
@clioptions.root
@clioptions.owners
def show(as_json: bool, root: Path, owners_directory: Path | None) -> None:
    """Show how many virtual functions each card has, could have, and how many are in use."""
    records = AllocationStore(clioptions.directory(root, owners_directory)).records()
    found = rows(scan(Host(root)), records)
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        click.echo(table(("card", "netdev", "link", "functions", "most", "in use"), [
            (row["card"], row["netdev"] or "", row["link_layer"] or "", str(row["functions"]), str(row["most"]),
             " ".join(row["in_use"])) for row in found]) if found else "no network card can have virtual functions")


@vfs.command()
@click.argument("file", default=FILE, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Check everything and print the plan, but change nothing.")
@clioptions.owners
def apply(file: Path, dry_run: bool, owners_directory: Path | None) -> None:
    """Provision virtual functions from FILE: a line for each card, `0000:5e:00.0: 8`; 0 is none.

    Only differences are applied. A card with a function in use keeps its number: a file that would change it is
    refused before anything changes. If a step fails, those before it are undone. Needs root.
    """
    counts = wanted.counts(devicefile.load(file))
    provisioner = Provisioner(clioptions.directory(Path("/"), owners_directory), scan)
    for change in provisioner.plans(counts) if dry_run else provisioner.apply(counts):
        click.echo(str(change))
    for device in () if dry_run else scan().devices:
        if device.role is Role.VF and device.parent in counts and not device.healthy:
            click.echo(printable(f"{device.id} cannot be used yet: {'; '.join(device.health)}"), err=True)


def rows(inventory: Inventory, held: Collection[str]) -> list[dict[str, Any]]:
    """Return a JSON-ready row for each card that can have virtual functions."""
    return [{"card": card.id, "netdev": card.netdev, "link_layer": card.link_layer, "most": card.total_vfs,
             "functions": len(there := functions_of(inventory, card.id)),
             "in_use": [function.id for function in there if in_use(function, held)]}
            for card in inventory.devices if card.kind is Kind.NET and card.role is Role.PF]
