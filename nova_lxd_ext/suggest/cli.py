# SPDX-License-Identifier: Apache-2.0
"""Run ``containerhost config nova``."""

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

import click

from containerhost.devices import pci
from containerhost.devices.model import PARTS, Device
from containerhost.inventory import topology
from containerhost.inventory.scan import Inventory, scan
from containerhost.linux.sysfs import Host
from containerhost.operator import clioptions
from containerhost.operator.reports.report import printable
from containerhost.operator.suggest.offers import offers, unprovisioned
from containerhost.operator.suggest.sizes import sizes
from nova_lxd_ext.suggest import flavors, pcisection

_DISK = 20  # GiB


@click.command()
@click.option("--flavors", "form", type=click.Choice(sorted(flavors.WRITERS)),
              help="Print flavors for these devices in this form, and not nova.conf.")
@click.option("--disk", default=_DISK, show_default=True, type=click.IntRange(min=1), metavar="GIB",
              help="Root disk of the flavors.")
@clioptions.as_json
@clioptions.root
def nova(form: str | None, disk: int, as_json: bool, root: Path) -> None:
    """Print [pci] of nova.conf for the devices of this host: device_spec, aliases, resource classes and traits."""
    host = Host(root)
    found = scan(host)
    beyond = [device for device in found.devices if device.kind not in PARTS and pci.is_beyond_nova(device.address)]
    inventory = Inventory(tuple(device for device in found.devices if device not in beyond))
    section = pcisection.section(offers(inventory))
    if not section.device_specs:
        click.echo("This host has no device that servers could be given; `containerhost list` and "
                   "`containerhost doctor` show what it has.", err=True)
    suggested = flavors.flavors(sizes(inventory, topology.read(host)), disk)
    if as_json:
        click.echo(json.dumps(section.to_dict() | {
            "flavors": [dataclasses.asdict(flavor) for flavor in suggested],
            "without_vfs": [device.id for device in unprovisioned(inventory)],
            "beyond_nova": [device.id for device in beyond]}, indent=1))
    elif form:
        click.echo(flavors.WRITERS[form](suggested))
    else:
        click.echo(nova_conf(section, unprovisioned(inventory), beyond))


def nova_conf(section: pcisection.PciSection, idle: Iterable[Device], beyond: Iterable[Device] = ()) -> str:
    """Write the sections of nova.conf.

    :param idle: cards without VFs
    :param beyond: devices that nova does not support
    """
    return "\n".join((
        *(f"# {printable(device.id)}: {pci.NOVA_DOMAINS}" for device in beyond),
        *(f"# {printable(device.id)} could have {device.total_vfs} virtual functions and has none: `containerhost vfs`"
          for device in idle),
        "[pci]",
        "# On this compute node:",
        *(f"device_spec = {json.dumps(spec)}" for spec in section.device_specs),
        "report_in_placement = True",
        "# On this compute node and where nova-api runs:",
        *(f"alias = {json.dumps(alias)}" for alias in section.aliases),
        "",
        "[filter_scheduler]",
        "# On this compute node, and where nova-scheduler and nova-api run:",
        "pci_in_placement = True"))
