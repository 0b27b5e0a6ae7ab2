"""The command ``lxdone-install``: puts the driver on a front-end, and checks a node."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from containerhost.rollback import Rollback
from lxdone import conffile, nodecheck, remotes, stanza
from onedriver.errors import DriverError

CONFIGURED = ("oned.conf", "monitord.conf")
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class Commands(click.Group):
    """Ends with a message and status 1, not with a trace, on every error that has an explanation."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except (DriverError, OSError) as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=Commands)
def main() -> None:
    """OpenNebula's driver for LXD: its front-end part and its nodes."""


@main.command("front-end")
@click.option("--remotes", "folder", type=FOLDER, default="/var/lib/one/remotes", show_default=True,
              help="The front-end's folder of scripts for nodes.")
@click.option("--conf", "configuration", type=FOLDER, default="/etc/one", show_default=True,
              help="The folder with oned.conf and monitord.conf.")
@click.option("--apply", "to_apply", is_flag=True, help="Change oned.conf and monitord.conf; without it, print what to "
              "change.")
@click.option("--uninstall", "to_remove", is_flag=True, help="Take everything away again.")
@_json
def front_end(folder: Path, configuration: Path, to_apply: bool, to_remove: bool, as_json: bool) -> None:
    """Copy the driver's scripts, and configure oned and onemonitord."""
    changes = planned(configuration, to_remove) if to_apply else {}
    files = remotes.uninstall(folder) if to_remove else remotes.install(folder)
    write(changes)
    by_hand = {} if to_apply else {name: stanza_of(name) for name in CONFIGURED}
    if as_json:
        click.echo(json.dumps({"files": [str(folder / file) for file in files],
                               "configured": [str(path) for path in changes], "by_hand": by_hand}))
    else:
        click.echo(told(folder, len(files), changes, by_hand, to_remove))


def stanza_of(name: str) -> str:
    return (remotes.source() / name).read_text(encoding="utf-8")


def planned(configuration: Path, to_remove: bool) -> dict[Path, str]:
    """The new text of every file that changes.

    :raises CannotConfigure: one of them cannot be changed
    """
    changes = {}
    for name in CONFIGURED:
        path = configuration / name
        before = path.read_text(encoding="utf-8")
        try:
            after = stanza.removed(before) if to_remove else stanza.inserted(before, stanza_of(name))
        except stanza.CannotConfigure as error:
            raise stanza.CannotConfigure(f"{path}: {error}") from error
        if after != before:
            changes[path] = after
    return changes


def write(changes: Mapping[Path, str]) -> None:
    """All or none."""
    with Rollback("configure the front-end") as rollback:
        for path, text in changes.items():
            before = path.read_text(encoding="utf-8")
            conffile.replace(path, text)
            rollback.on_error(f"change {path}", conffile.replace, path, before)


def told(folder: Path, files: int, changes: Mapping[Path, str], by_hand: Mapping[str, str], to_remove: bool) -> str:
    lines = [f"{files} scripts {'removed from' if to_remove else 'new or changed in'} {folder}"]
    lines += [f"{path} changed; {conffile.backup(path).name} is what it was before" for path in changes]
    for name, text in by_hand.items():
        lines.append(f"{'remove from' if to_remove else 'add to'} {name}:\n\n{text}")
    if files or changes:
        lines.append("restart OpenNebula's service, then bring the scripts to the nodes: onehost sync --force")
    return "\n".join(lines)


@main.command()
@click.option("--user", default="oneadmin", show_default=True, help="Who the front-end logs in as.")
@_json
def node(user: str, as_json: bool) -> None:
    """Check that this node can run VMs; status 1 if something is wrong."""
    found = nodecheck.check(user)
    if as_json:
        click.echo(json.dumps(found))
    else:
        for name, complaints in found.items():
            click.echo(f"{name}: {'; '.join(complaints) or 'in order'}")
    if any(found.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
