# SPDX-License-Identifier: Apache-2.0
"""Run ``containerhost mig``: show the partitioning of this host's GPUs, and change it from a file."""

import json
from pathlib import Path

import click

from containerhost.allocation.store import AllocationStore
from containerhost.inventory import devicefile
from containerhost.inventory.scan import scan
from containerhost.operator import clioptions
from containerhost.operator.reports.report import printable
from containerhost.vendors.nvidia.mig import report, wanted


@click.group(invoke_without_command=True)
@click.pass_context
def mig(context: click.Context) -> None:
    """Show or change how NVIDIA GPUs are partitioned into slices (MIG)."""
    if context.invoked_subcommand is None:
        show.main([], parent=context, standalone_mode=False)


@mig.command()
@clioptions.as_json
@clioptions.owners
def show(as_json: bool, owners_directory: Path | None) -> None:
    """Show each GPU's MIG mode, its possible profiles, and its slices with their holders."""
    from containerhost.vendors.nvidia.mig.library import Library  # noqa: PLC0415  (other commands load this module, too)

    with Library() as library:
        geometries = library.read()
    store = AllocationStore(clioptions.directory(Path("/"), owners_directory))
    holders = {name: str(record.consumer) for name, record in store.records().items()}
    if as_json:
        click.echo(json.dumps([report.to_dict(geometry, holders) for geometry in geometries], indent=1))
    else:
        click.echo(report.show(geometries, holders))


@mig.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Check everything and print the plan, but change nothing.")
@clioptions.owners
def apply(file: Path, dry_run: bool, owners_directory: Path | None) -> None:
    """Partition GPUs from FILE: a line for each GPU, `0000:3b:00.0: [1g.5gb, 2g.10gb]`; an empty list is a whole one.

    Only differences are applied. An allocated slice is never touched: a file that would remove one is refused before
    anything changes. If a step fails, those before it are undone.
    """
    from containerhost.vendors.nvidia.mig.apply import Cutter  # noqa: PLC0415  (likewise)
    from containerhost.vendors.nvidia.mig.library import Library  # noqa: PLC0415  (likewise)

    lists = wanted.lists(devicefile.load(file))
    with Library() as library:
        cutter = Cutter(library, clioptions.directory(Path("/"), owners_directory), scan)
        if dry_run:
            click.echo(report.steps(cutter.plans(lists)))
            return
        click.echo(report.steps(cutter.apply(lists)))
    for device in scan().devices:
        if device.slice and device.address in lists and not device.healthy:
            click.echo(printable(f"{device.id} cannot be used yet: {'; '.join(device.health)}"), err=True)
