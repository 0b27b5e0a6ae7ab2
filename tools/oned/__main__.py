# SPDX-License-Identifier: Apache-2.0
"""The commands of tools/opennebula."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click

from tools.oned import front_end, scenarios, setup
from tools.oned.cloud import Cloud
from tools.oned.machine import CHECKOUT, MachineFailed, require_seen
from tools.oned.one import One
from tools.oned.stage import Stage
from tools.oned.story import Story

SOURCE = click.option("--source", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True,
                      help="A source tree of OpenNebula, built if it was not.")
KEEP = click.option("--keep", is_flag=True, help="Leave the cloud up.")


@click.group()
def main() -> None:
    """OpenNebula's own oned with both drivers on two nodes."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def progress() -> Callable[[str], None]:
    started = time.monotonic()
    return lambda text: click.echo(f"[{time.monotonic() - started:6.1f} s] {text}")


def brought_up(cloud: Cloud, one: One, source: Path, say: Callable[[str], None]) -> None:
    """Bring the cloud up unless it is.

    :raises MachineFailed: it cannot be brought up; what is there of it is taken down by the caller
    """
    require_seen(CHECKOUT.resolve(), source.resolve())
    front_end.build(source.resolve(), say)
    if not cloud.ready:
        cloud.down()
        cloud.up(source.resolve())
        setup.make(cloud, one)
        cloud.finished()
        say("hosts, datastores, images and networks are there")


@main.command()
@SOURCE
def up(source: Path) -> None:
    """Bring the cloud up and leave it up."""
    cloud = Cloud(progress())
    one = One(cloud.front)
    try:
        brought_up(cloud, one, source, progress())
    except MachineFailed as error:
        cloud.down()
        raise click.ClickException(str(error)) from error
    finally:
        one.close()


@main.command()
@SOURCE
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the results to a file.")
@KEEP
@click.argument("names", nargs=-1)
def run(source: Path, json_file: Path | None, keep: bool, names: tuple[str, ...]) -> None:
    """Bring the cloud up, unless one was kept, and try the scenarios NAMES, by default all; status 0 if all passed."""
    say = progress()
    try:
        chosen = scenarios.chosen(names)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    cloud = Cloud(say)
    one = One(cloud.front)
    results: list[scenarios.Result] = []
    try:
        brought_up(cloud, one, source, say)
        results = scenarios.run(chosen, Stage(cloud, one), say)
    except MachineFailed as error:
        raise click.ClickException(str(error)) from error
    finally:
        one.close()
        if not keep:
            cloud.down()
        if json_file:
            json_file.write_text(json.dumps([result._asdict() for result in results], indent=1) + "\n")
    failed = [result.name for result in results if not result.passed]
    say(f"{len(results) - len(failed)} of {len(results)} scenarios passed, nothing left by "
        f"{sum(not result.left for result in results)}{': not ' + ', '.join(failed) if failed else ''}")
    sys.exit(bool(failed))


@main.command()
@SOURCE
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write every fact to a file.")
@KEEP
def demo(source: Path, json_file: Path | None, keep: bool) -> None:
    """Show people what the drivers do; status 0 if every fact holds."""
    say = progress()
    cloud = Cloud(say)
    one = One(cloud.front)
    story = Story(Stage(cloud, one), say)
    try:
        brought_up(cloud, one, source, say)
        holds = story.tell()
    except (AssertionError, MachineFailed) as error:
        raise click.ClickException(str(error)) from error
    finally:
        one.close()
        if not keep:
            cloud.down()
        if json_file:
            facts = [dict(zip(("fact", "holds", "seconds"), fact, strict=True)) for fact in story.facts]
            json_file.write_text(json.dumps(facts, indent=1) + "\n")
    sys.exit(not holds)


@main.command("list")
def listed() -> None:
    """Print the names of the scenarios."""
    click.echo("\n".join(scenarios.known()))


@main.command()
def down() -> None:
    """End a cloud."""
    Cloud(click.echo).down()


@main.command("exec", context_settings={"allow_interspersed_args": False})
@click.option("--on", default="front-end")
@click.option("--user", default="oneadmin")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def execute(on: str, user: str, command: tuple[str, ...]) -> None:
    """Run COMMAND on a machine of the cloud, as oneadmin."""
    machine = next((machine for machine in Cloud(click.echo).machines if machine.name == on), None)
    if machine is None or not machine.up:
        raise click.UsageError(f"there is no machine {on}: run --keep leaves front-end, node1 and node2")
    words = machine.there("env", "HOME=/var/lib/one", *command, user=None if user == "root" else user)
    sys.exit(subprocess.run(words, check=False).returncode)


if __name__ == "__main__":
    main()
