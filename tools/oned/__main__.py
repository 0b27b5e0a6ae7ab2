"""The commands of tools/opennebula."""

import json
import subprocess
import sys
import time
from pathlib import Path

import click

from tools.oned import scenarios, setup
from tools.oned.cloud import Cloud
from tools.oned.one import One
from tools.oned.scenarios import Scenarios

SOURCE = click.option("--source", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True,
                      help="A source tree of OpenNebula, built if it was not.")


@click.group()
def main() -> None:
    """OpenNebula's own oned with both drivers on two nodes."""


@main.command()
@SOURCE
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the results to a file.")
@click.option("--keep", is_flag=True, help="Leave the cloud up.")
@click.argument("names", nargs=-1)
def run(source: Path, json_file: Path | None, keep: bool, names: tuple[str, ...]) -> None:
    """Bring the cloud up, unless one was kept, and try the scenarios NAMES, by default all; status 0 if all passed."""
    started = time.monotonic()

    def say(text: str) -> None:
        click.echo(f"[{time.monotonic() - started:6.1f} s] {text}")

    cloud = Cloud(source, say)
    one = One(cloud.front)
    try:
        if not cloud.front.up:
            cloud.up()
            setup.make(cloud, one)
            say("hosts, datastores, images and a network are there")
        known = Scenarios(cloud, one).all()
        results = scenarios.run({name: known[name] for name in names or known}, say)
    finally:
        if not keep:
            cloud.down()
    if json_file:
        json_file.write_text(json.dumps([result._asdict() for result in results], indent=1) + "\n")
    sys.exit(any(result.problem for result in results))


@main.command()
def down() -> None:
    """End a cloud."""
    Cloud(Path(), click.echo).down()


@main.command("exec", context_settings={"ignore_unknown_options": True})
@click.option("--on", default="front-end")
@click.option("--user", default="oneadmin")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def execute(on: str, user: str, command: tuple[str, ...]) -> None:
    """Run COMMAND on a machine of the cloud, as oneadmin."""
    machine = next(machine for machine in Cloud(Path(), click.echo).machines if machine.name == on)
    words = machine.there("env", "HOME=/var/lib/one", *command, user=None if user == "root" else user)
    sys.exit(subprocess.run(words, check=False).returncode)


if __name__ == "__main__":
    main()
