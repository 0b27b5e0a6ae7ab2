# SPDX-License-Identifier: Apache-2.0
"""Run the command ``<driver>-install``: install a driver on a front-end, and check a node."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from containerhost.rollback import Rollback
from onedriver.errors import DriverError
from onedriver.setup import conffile, networkdrivers, remotes, stanza, transferdrivers

CONFIGURED = ("oned.conf", "monitord.conf")
LIVE_FILE, LIVE_LIST = "vmm_exec/vmm_execrc", "LIVE_DISK_SNAPSHOTS"  # pairs of drivers: VMM-TM
DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)
EXEC_WARNING = ("warning: {path} lets the owner of a VM call exec, by which he can run a command as oneadmin on this "
                "front-end (OpenNebula 7.4, with every hypervisor): move exec from VM_MANAGE_OPERATIONS to "
                "VM_ADMIN_OPERATIONS; see the manual, Reports for OpenNebula")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class Driver(NamedTuple):
    """Describe a driver to its installer: its check of a node and its entries in oned's configuration.

    :ivar engine: display name: ``LXD``
    :ivar check: checks this node for the user that the front-end logs in as: complaints by subject
    :ivar lists: lists of oned.conf that must contain the driver's name
    :ivar live: the transfer drivers that can copy disks of its running VMs
    """

    name: str
    engine: str
    check: Callable[[str], Mapping[str, list[str]]]
    lists: stanza.Lists = ()
    live: Sequence[str] = ()

    @property
    def pairs(self) -> Sequence[str]:
        return [f"{self.name}-{transfer}" for transfer in self.live]

    @property
    def others(self) -> Sequence[str]:
        """Return the drivers in the lists, OpenNebula's own among them."""
        return [transfer for transfer in self.live if transfer != self.name]


class Commands(click.Group):
    """Show errors with an explanation as a message and status 1, not as a traceback."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except (DriverError, OSError) as error:
            raise click.ClickException(str(error)) from error


def commands(driver: Driver) -> click.Group:
    @click.group(cls=Commands, help=f"OpenNebula's driver for {driver.engine}: its front-end part and its nodes.")
    @click.version_option(package_name="nova-lxd-ext")
    def main() -> None:
        """"""

    @main.command("front-end")
    @click.option("--remotes", "directory", type=DIRECTORY, default="/var/lib/one/remotes", show_default=True,
                  help="The front-end's directory of scripts.")
    @click.option("--conf", "configuration", type=DIRECTORY, default="/etc/one", show_default=True,
                  help="The directory with oned.conf and monitord.conf.")
    @click.option("--apply", "to_apply", is_flag=True, help="Change oned.conf, monitord.conf and vmm_execrc; without "
                  "it, print what to change.")
    @click.option("--uninstall", "to_remove", is_flag=True, help="Take everything away again.")
    @_json
    def front_end(directory: Path, configuration: Path, to_apply: bool, to_remove: bool, as_json: bool) -> None:
        """Copy the driver's scripts, and configure oned and onemonitord."""
        changes = planned(driver, configuration, to_remove) if to_apply else {}
        files = [path for part in (networkdrivers, remotes)
                 for path in (part.uninstall if to_remove else part.install)(directory, driver.name)]
        files += (transferdrivers.uninstall if to_remove else transferdrivers.install)(directory, driver.name,
                                                                                       driver.others)
        write(driver, changes)
        warnings = [] if to_remove else warnings_of(configuration)
        by_hand = {} if to_apply else {name: by_hand_in(driver, name) for name in (*CONFIGURED, LIVE_FILE)}
        if as_json:
            click.echo(json.dumps({"files": [str(directory / file) for file in files],
                                   "configured": [str(path) for path in changes], "by_hand": by_hand,
                                   "warnings": warnings}))
        else:
            click.echo("\n".join([summary(driver, directory, len(files), changes, by_hand, to_remove), *warnings]))

    @main.command()
    def sample() -> None:
        """Print a node's options with their defaults, as the file that an administrator edits."""
        click.echo(remotes.sample(driver.name).read_text(encoding="utf-8"), nl=False)

    @main.command()
    @click.option("--user", default="oneadmin", show_default=True, help="Who the front-end logs in as.")
    @_json
    def node(user: str, as_json: bool) -> None:
        """Check that this node can run VMs; status 1 if there are problems."""
        found = driver.check(user)
        if as_json:
            click.echo(json.dumps(found))
        else:
            for name, complaints in found.items():
                click.echo(f"{name}: {'; '.join(complaints) or 'in order'}")
        if any(found.values()):
            raise SystemExit(1)

    return main


def warnings_of(configuration: Path) -> list[str]:
    """Return warnings about OpenNebula's configuration that endanger the front-end."""
    path = configuration / CONFIGURED[0]
    if path.exists() and stanza.lets_owners_exec(path.read_text(encoding="utf-8")):
        return [EXEC_WARNING.format(path=path)]
    return []


def stanza_of(driver: Driver, name: str) -> str:
    return (remotes.source() / driver.name / name).read_text(encoding="utf-8")


def by_hand_in(driver: Driver, name: str) -> str:
    if name == LIVE_FILE:
        return f"# …to the list {LIVE_LIST}\n{' '.join(driver.pairs)}\n"
    lists = "".join(f"# …and {driver.name} to the list {option} in ARGUMENTS of {section}\n"
                    for section, option in driver.lists) if name == CONFIGURED[0] else ""
    return stanza_of(driver, name) + lists


def planned(driver: Driver, configuration: Path, to_remove: bool) -> dict[Path, str]:
    """Return the new text of every changed file; raise CannotConfigure if a file cannot be changed."""
    changes = {}
    for name in (*CONFIGURED, *([LIVE_FILE] if (configuration / LIVE_FILE).exists() else ())):
        path = configuration / name
        before = path.read_text(encoding="utf-8")
        try:
            after = (without if to_remove else including)(driver, name, before)
        except stanza.CannotConfigure as error:
            raise stanza.CannotConfigure(f"{path}: {error}") from error
        if after != before:
            changes[path] = after
    return changes


def including(driver: Driver, name: str, text: str) -> str:
    """Return the text of the file ``name`` with the driver's part."""
    if name == LIVE_FILE:
        return stanza.with_words(text, LIVE_LIST, driver.pairs)
    return stanza.inserted(stanza.listed(text, lists_in(driver, name), driver.name), stanza_of(driver, name),
                           driver.name)


def without(driver: Driver, name: str, text: str) -> str:
    if name == LIVE_FILE:
        return stanza.without_words(text, LIVE_LIST, driver.pairs)
    return stanza.unlisted(stanza.removed(text, driver.name), lists_in(driver, name), driver.name)


def lists_in(driver: Driver, name: str) -> stanza.Lists:
    return driver.lists if name == CONFIGURED[0] else ()


def write(driver: Driver, changes: Mapping[Path, str]) -> None:
    """Write all files or none."""
    with Rollback("configure the front-end") as rollback:
        for path, text in changes.items():
            before = path.read_text(encoding="utf-8")
            conffile.replace(path, text, driver.name)
            rollback.on_error(f"change {path}", conffile.replace, path, before, driver.name)


def summary(driver: Driver, directory: Path, files: int, changes: Mapping[Path, str], by_hand: Mapping[str, str],
            to_remove: bool) -> str:
    lines = [f"{files} scripts {'removed from' if to_remove else 'new or changed in'} {directory}"]
    lines += [f"{path} changed; {conffile.backup(path, driver.name).name} is what it was before" for path in changes]
    for name, text in by_hand.items():
        lines.append(f"{'remove from' if to_remove else 'add to'} {name}:\n\n{text}")
    if files or changes:
        lines.append("restart OpenNebula's service, then bring the scripts to the nodes: onehost sync --force")
    return "\n".join(lines)
