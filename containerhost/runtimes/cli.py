# SPDX-License-Identifier: Apache-2.0
"""Commands of ``containerhost`` that give devices to programs which no cloud started."""

import json
from pathlib import Path

import click

from containerhost import clioptions
from containerhost.devices.scan import scan
from containerhost.reports.report import table
from containerhost.runtimes import cdi as specifications
from containerhost.sysfs import Host


@click.command()
@clioptions.as_json
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), is_flag=False,
              flag_value=specifications.FILE, metavar="[FILE]",
              help=f"Write the specification, if it changed; {specifications.FILE} if no FILE is given. Needs root.")
@clioptions.root
def cdi(as_json: bool, output: Path | None, root: Path) -> None:
    """Show by which names container engines take this host's devices (Container Device Interface), or write the
    specification that they read. A name allocates nothing: `run` does."""
    found = specifications.specification(scan(Host(root)).devices)
    if output:
        try:
            click.echo(f"{output}: {specifications.write(output, found)}", err=as_json)
        except OSError as error:
            raise click.ClickException(f"{output} cannot be written: {error.strerror}") from error
    if as_json:
        click.echo(json.dumps(found, indent=1))
    elif not output:
        rows = [(f"{specifications.KIND}={each['name']}",
                 " ".join(node["path"].removeprefix("/dev/") for node in each["containerEdits"]["deviceNodes"]))
                for each in (found or {}).get("devices", ())]
        click.echo(table(("name", "nodes"), rows) if rows else "no device of this host has nodes for containers")
