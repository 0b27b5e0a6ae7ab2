# SPDX-License-Identifier: Apache-2.0
"""Provide the commands of ``containerhost`` that keep a device from new consumers, and release it."""

from pathlib import Path

import click

from containerhost.allocation import drain as draining
from containerhost.allocation.store import AllocationStore
from containerhost.errors import DeviceHeld
from containerhost.inventory.scan import scan
from containerhost.inventory.taints import TaintFile
from containerhost.linux.sysfs import Host
from containerhost.operator import clioptions

DRAIN_TIMEOUT = 600.0  # seconds

_device = click.argument("device")
_reason = click.option("--reason", required=True, metavar="TEXT", help="Why, for its holder and other operators.")
_root = click.option("--root", default="/", hidden=True, type=click.Path(exists=True, file_okay=False, path_type=Path))


@click.command()
@_device
@_reason
@_root
def taint(device: str, reason: str, root: Path) -> None:
    """Keep DEVICE and its parts from new containers. Needs root.

    A container that has it keeps it, may restart with it, and is notified of the reason."""
    host = Host(root)
    found = scan(host).get(device)
    TaintFile(host).taint(found.id, reason)
    click.echo(f"{found.id} is tainted: {reason}")


@click.command()
@_device
@_root
def untaint(device: str, root: Path) -> None:
    """Undo `taint`, `drain` and `tolerate` of DEVICE. Needs root.

    A healthy device is allocated again within a minute: at the next scan of nova-compute, or of OpenNebula's
    monitoring."""
    host = Host(root)
    if TaintFile(host).untaint(device.lower()):
        click.echo(f"{device} is no longer tainted")
    else:
        click.echo(f"{scan(host).get(device).id} is not tainted")


@click.command()
@_device
@_root
def tolerate(device: str, root: Path) -> None:
    """Allocate DEVICE despite its present complaints, until `untaint` or another complaint. Needs root."""
    host = Host(root)
    found = scan(host).get(device)
    complaints = [text for text in found.health if text not in found.outside]
    if not complaints:
        raise DeviceHeld(f"what is wrong with device {found.id} is outside it, and is not tolerated: "
                         f"{'; '.join(found.health)}" if found.health else f"nothing is wrong with device {found.id}")
    TaintFile(host).tolerate(found.id, complaints)
    click.echo(f"{found.id} is used despite: {'; '.join(complaints)}")


@click.command()
@_device
@_reason
@click.option("--timeout", default=DRAIN_TIMEOUT, show_default=True, type=click.FloatRange(0), metavar="SECONDS",
              help="How long to wait for its holders.")
@_root
@clioptions.owners
def drain(device: str, reason: str, timeout: float, root: Path, owners_directory: Path | None) -> None:
    """Taint DEVICE, and wait until no container has it or a part of it. Needs root.

    Detaches nothing from any container. The status is 1 if some still have it."""
    host = Host(root)
    inventory = scan(host)
    found = inventory.get(device)
    store = AllocationStore(clioptions.directory(root, owners_directory))
    TaintFile(host).taint(found.id, reason)
    for name, who in draining.holders(store.records(), found, inventory).items():
        click.echo(f"waiting for {who}, which has {name}")
    draining.drain(store, found, inventory, timeout)
    click.echo(f"{found.id} is drained: no container has it, and none gets it until `containerhost untaint "
               f"{found.id}`")


COMMANDS: tuple[click.Command, ...] = (taint, untaint, tolerate, drain)
