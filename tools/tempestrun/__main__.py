# SPDX-License-Identifier: Apache-2.0
"""The commands of tools/tempest, inside the namespace that the cloud is in."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from tools import supportmatrix
from tools.cloud import guest, ini, networking
from tools.cloud.cloud import Cloud
from tools.cloud.layout import CHECKOUT, Layout, Passwords, Shape, program
from tools.tempestrun import config, exclusions, features, verdict

SHAPE = Shape(networks=True, volumes=True, second_host=True, dashboard=True)
SHARED_VOLUMES = "shared"
# Every one of these is run, or stands in the exclusions with its reason.
TESTS = r"^(tempest\.(api\.compute|scenario)|tempest_horizon)\."


def layout() -> Layout:
    return Layout(CHECKOUT / ".tempest")


@click.group()
def main() -> None:
    """Tempest against the driver."""


@main.command()
@click.option("--json", "json_file", type=click.Path(path_type=Path))
@click.option("--workers", default=2, show_default=True)
@click.option("--keep", is_flag=True)
@click.argument("tests", default=TESTS)
def run(json_file: Path | None, workers: int, keep: bool, tests: str) -> None:
    """Bring the cloud up, run the TESTS, say what came out; status 0 only if some passed and none failed."""
    started = time.monotonic()

    def say(text: str) -> None:
        click.echo(f"[{time.monotonic() - started:7.1f} s] {text}")

    cloud = Cloud(layout(), say=say, shape=SHAPE)
    try:
        cloud.up()
        say("The cloud is up")
        directory = prepare(cloud)
        names, entries = listed(directory, tests), exclusions.load()
        apart = exclusions.excluded(names, [entry for entry in entries if entry.apart])
        left_out = exclusions.excluded(names, [entry for entry in entries if not entry.apart])
        if not set(names) - left_out.keys():
            raise click.ClickException(f"No test matches {tests!r} that is not left out: the expression is searched in "
                                       "names like tempest.api.compute.flavors.test_flavors.FlavorsV2TestJSON")
        say(f"Running Tempest, {workers} tests at a time; {len(left_out)} are left out")
        stream = directory / "results.subunit"
        attempt(directory, stream, sorted(set(names) - {*left_out, *apart}), workers)
        attempt(directory, stream, sorted(apart), 1)
        found = verdict.read(stream, left_out)
    finally:
        if not keep:
            cloud.down()
    tell(found)
    if json_file:
        json_file.write_text(json.dumps(found.to_dict(), indent=1) + "\n")
    sys.exit(0 if found.ok else 1)


@main.command()
def down() -> None:
    """End a cloud that was kept."""
    if layout().in_use:
        Cloud(layout(), shape=SHAPE).down()


@main.command("exec", context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def execute(command: tuple[str, ...]) -> None:
    """Run COMMAND where a kept cloud is."""
    here = layout()
    if not here.clouds_yaml.exists():
        raise click.ClickException("No cloud is up. Start one with: sudo tools/tempest --keep")
    cloud = Cloud(here, shape=SHAPE)
    environment = {"OS_CLOUD": "admin", **os.environ, **cloud.engine.environment,
                   "OS_CLIENT_CONFIG_FILE": str(here.clouds_yaml)}
    os.execvpe(command[0], list(command), environment)  # noqa: S606 (the operator's own words)


def prepare(cloud: Cloud) -> Path:
    """Make what Tempest finds in the cloud, and its configuration; the directory it runs in."""
    directory = cloud.layout.run / "tempest"
    directory.mkdir()
    image = guest.build(directory / "guest.tar.gz")
    with cloud.connect("admin") as admin:
        images = [admin.create_image(name, filename=str(image), disk_format="raw", container_format="bare",
                                     visibility="public", wait=True, timeout=60).id for name in ("guest", "guest-alt")]
        flavors = [admin.compute.create_flavor(name=name, vcpus=1, ram=ram, disk=1).id
                   for name, ram in (("small", 128), ("larger", 192))]
        admin.block_storage.create_type(name=SHARED_VOLUMES, extra_specs={"multiattach": "<is> True"})
        external = admin.network.find_network(networking.EXTERNAL, ignore_missing=False).id
    # Tempest itself would take a tarball apart and look for a kernel in it.
    squashed = guest.squash(image, directory / "guest.squashfs")
    prepared = config.Prepared(
        directory=directory, image_file=squashed, password=Passwords(cloud.layout.state / "passwords.json")["admin"],
        images=(images[0], images[1]), flavors=(flavors[0], flavors[1]), external=external,
        shared_volumes=SHARED_VOLUMES,
        features=features.enabled(supportmatrix.load()))
    ini.write(directory / "tempest.conf", config.tempest(prepared, cloud.ports, cloud.shape))
    subprocess.run((program("stestr"), "init"), cwd=directory, check=True)
    return directory


def listed(directory: Path, tests: str) -> list[str]:
    """Names of all tests that match, the excluded ones too."""
    told = subprocess.run((*stestr(directory, "list"), tests), cwd=directory, env=environment_in(directory), text=True,
                          stdout=subprocess.PIPE, check=True).stdout
    return sorted({verdict.name_of(line) for line in told.splitlines() if re.match("tempest[a-z_]*[.]", line)})


def attempt(directory: Path, stream: Path, tests: Sequence[str], workers: int) -> None:
    """Run them, and add to the stream of results. A failed test is no error: the stream tells it."""
    if not tests:
        return
    chosen = directory / "chosen"
    chosen.write_text(exclusions.stestr_list(tests))
    command = (*stestr(directory, "run"), "--concurrency", str(workers), "--include-list", str(chosen), "--subunit")
    show = (sys.executable, str(CHECKOUT / "tools" / "progress.py"), "tempest")
    with (subprocess.Popen(command, cwd=directory, env=environment_in(directory), stdout=subprocess.PIPE) as runner,
          subprocess.Popen(("tee", "--append", str(stream)), stdin=runner.stdout, stdout=subprocess.PIPE) as copy):
        subprocess.run(show, stdin=copy.stdout, check=True)


def stestr(directory: Path, command: str) -> tuple[str, ...]:
    """Tempest's tests lie in its package; tests of one class stay on one worker, as their set-up is shared."""
    package = Path(subprocess.run(
        (sys.executable, "-c", "import tempest; print(tempest.__path__[0])"), text=True, stdout=subprocess.PIPE,
        check=True).stdout.strip())
    return (program("stestr"), "--test-path", str(package / "test_discover"), "--top-dir", str(package.parent),
            "--group_regex", r"([^\.]*\.)*", command)


def environment_in(directory: Path) -> dict[str, str]:
    return {**os.environ, "TEMPEST_CONFIG_DIR": str(directory), "TEMPEST_CONFIG": "tempest.conf",
            "HOME": str(directory), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def tell(found: verdict.Verdict) -> None:
    for test, reason in found.skipped.items():
        click.echo(f"skipped: {test}: {reason}")
    for test, reason in found.excluded.items():
        click.echo(f"excluded: {test}: {reason}")
    for test, error in found.failed.items():
        click.echo(f"failed: {test}: {error}")
    click.echo(found.line())


if __name__ == "__main__":
    main()
