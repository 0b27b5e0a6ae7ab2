"""The command ``containerhost``: look at a host the way the drivers do. Needs no privileges but to change something."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import click

from containerhost import doctor as diagnosis
from containerhost import owners, report, sharing, topology
from containerhost.devices.model import Device
from containerhost.devices.scan import scan
from containerhost.errors import ContainerHostError, OwnersUnreadable
from containerhost.mig.cli import mig
from containerhost.sysfs import Host

_root = click.option("--root", default="/", metavar="DIR",
                     type=click.Path(exists=True, file_okay=False, path_type=Path),
                     help="Read a captured tree DIR/{sys,proc,dev} instead of this host.")
_owners = click.option("--owners", "owners_folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path),
                       help=f"Folder of the ownership records; {owners.FOLDER} below the root if not given.")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class Commands(click.Group):
    """Ends with a message and status 1, not with a trace, on every error that this project raises."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except ContainerHostError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=Commands)
def main() -> None:
    """One host's devices, topology and health, as containers are given them."""


main.add_command(mig)


@main.command("list")
@_json
@_root
@_owners
def list_devices(as_json: bool, root: Path, owners_folder: Path | None) -> None:
    """Show every GPU, GPU slice and network function, its health and who holds it."""
    inventory = scan(Host(root))
    records = _records(root, owners_folder)
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
    """Show processors, memory and NUMA nodes, and which devices are near."""
    host = Host(root)
    found, inventory = topology.read(host), scan(host)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(found), default=sorted, indent=1))
    else:
        click.echo(report.topology(found, inventory))


@main.command()
@_root
@_owners
def doctor(root: Path, owners_folder: Path | None) -> None:
    """Say what is wrong with this host; status 1 if anything is."""
    host = Host(root)
    inventory = scan(host)
    complaints = [*diagnosis.complaints(inventory, topology.read(host), _folder(root, owners_folder)),
                  *sharing.strangers(sharing.read(host), inventory.devices)]
    for complaint in complaints:
        click.echo(report.printable(complaint))
    if complaints:
        raise SystemExit(1)
    click.echo("no complaints")


@main.command()
@click.argument("device")
@_owners
def unblock(device: str, owners_folder: Path | None) -> None:
    """Free DEVICE, which was blocked because it could not be cleaned and which you have cleaned by hand."""
    owners.Owners(_folder(Path("/"), owners_folder)).free(device)


def _folder(root: Path, given: Path | None) -> Path:
    return given or root / owners.FOLDER.relative_to("/")


def _records(root: Path, given: Path | None) -> dict[str, owners.Record]:
    """What is known of owners. A list without them is better than none."""
    try:
        return owners.Owners(_folder(root, given)).records()
    except OwnersUnreadable as error:
        click.echo(f"owners are not shown: {error}", err=True)
        return {}


def _row(device: Device, records: dict[str, owners.Record]) -> dict[str, Any]:
    record = records.get(device.id)
    return device.to_dict() | {"owner": dataclasses.asdict(record.owner) if record else None,
                               "blocked": record.blocked if record else None}
