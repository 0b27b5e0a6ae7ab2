# SPDX-License-Identifier: Apache-2.0
"""The commands of tools/devstack."""

import dataclasses
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click

from tools import debian
from tools.cloud.layout import CHECKOUT
from tools.devstackrun import localconf, sources
from tools.devstackrun.machine import SOURCES, Machine, MachineFailed
from tools.devstackrun.story import Story

DIRECTORY = click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path)


@click.group()
def main() -> None:
    """Run DevStack with this project's plug-in."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def progress() -> Callable[[str], None]:
    started = time.monotonic()
    return lambda text: click.echo(f"[{time.monotonic() - started:6.1f} s] {text}")


@main.command()
@click.option("--devstack", type=DIRECTORY, required=True, help="A git repository of DevStack.")
@click.option("--sources", "directory", type=DIRECTORY, help="Repositories of the services, bare or not.")
@click.option("--engine", type=click.Choice([*localconf.GROUPS]), default="lxd", show_default=True)
@click.option("--host", default="small", show_default=True, help="The emulated host, as in tools/fakehost.")
@click.option("--set", "more", multiple=True, metavar="NAME=VALUE", help="A further setting of local.conf.")
@click.option("--tempest", is_flag=True, help="Also install Tempest, and run tests of servers.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the facts to a file.")
@click.option("--keep", is_flag=True, help="Leave the machine up, with DevStack running.")
def run(devstack: Path, directory: Path | None, engine: str, host: str, more: tuple[str, ...], tempest: bool,
        json_file: Path | None, keep: bool) -> None:
    """Run stack.sh, boot a server with a GPU, run unstack.sh and clean.sh; status 0 if every fact holds."""
    say = progress()
    machine = Machine(say)
    story = Story(machine, localconf.Wanted(engine, directory is not None, more, tempest), say)
    names = (*sources.SERVICES, *(sources.TEMPEST if tempest else ()))
    try:
        machine.stop()
        sources.make(devstack, directory, CHECKOUT, SOURCES, say, names)
        machine.start(host)
        say("the machine is up")
        story.stack()
        story.server()
        if tempest:
            story.tempest()
        if not keep:
            story.unstack()
            story.clean()
    except (MachineFailed, debian.Failed, sources.SourceMissing) as error:
        raise click.ClickException(str(error)) from error
    finally:
        if not keep:
            machine.stop()
        if json_file:
            facts = [dataclasses.asdict(fact) for fact in story.facts]
            json_file.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    sys.exit(not story.holds)


@main.command("exec", context_settings={"allow_interspersed_args": False})
@click.option("--root", is_flag=True, help="As root, and not as DevStack's user.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def execute(root: bool, command: tuple[str, ...]) -> None:
    """Run COMMAND on a kept machine."""
    try:
        words = Machine(click.echo).there(*command, user="root" if root else "stack")
    except MachineFailed as error:
        raise click.ClickException(str(error)) from error
    sys.exit(subprocess.run(words, check=False).returncode)


@main.command()
def down() -> None:
    """End a kept machine and remove its files."""
    Machine(click.echo).stop()


if __name__ == "__main__":
    main()
