# SPDX-License-Identifier: Apache-2.0
"""Run ``containerhost config opennebula``."""

import json
from pathlib import Path

import click

from containerhost.inventory import topology
from containerhost.inventory.scan import scan
from containerhost.linux.sysfs import Host
from containerhost.operator import clioptions
from containerhost.operator.reports.report import printable
from containerhost.operator.suggest.offers import offers, unprovisioned
from containerhost.operator.suggest.sizes import sizes
from onedriver.node.probes import kind
from onedriver.setup.suggest import templates

_DRIVERS = ("lxdone", "onedock")


@click.command()
@click.option("--driver", default=_DRIVERS[0], show_default=True, type=click.Choice(_DRIVERS),
              help="Which driver the node has.")
@click.option("--image", default="IMAGE", show_default=True, help="Image of the root disks in the templates.")
@clioptions.as_json
@clioptions.root
def opennebula(driver: str, image: str, as_json: bool, root: Path) -> None:
    """Print the node's option pci_filter, and templates of the host and of VMs, for the devices of this host."""
    inventory, found = scan(Host(root)), topology.read(Host(root))
    offered = offers(inventory)
    vms = templates.vms(sizes(inventory, found), image, driver)
    idle = unprovisioned(inventory)
    if as_json:
        click.echo(json.dumps({"pci_filter": [kind(offer.first) for offer in offered], "host": templates.host(found),
                               "vms": vms, "without_vfs": [device.id for device in idle]}, indent=1))
        return
    for device in idle:
        click.echo(printable(f"# {device.id} could have {device.total_vfs} virtual functions and has none: "
                             "`containerhost vfs`"))
    for title, content in ((f"/etc/{driver}.toml on this node", templates.pci_filter(offered)),
                           ("for `onehost update HOST`", templates.host(found)),
                           *((f"for `onetemplate create`: {name}", text) for name, text in vms.items())):
        click.echo(f"# {title}\n{content}\n")
