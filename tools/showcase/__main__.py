# SPDX-License-Identifier: Apache-2.0
"""The commands of tools/demo."""

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from containerhost.allocation.store import DIRECTORY
from tools.cloud import hardware
from tools.cloud.cloud import Cloud
from tools.cloud.identity import TENANT
from tools.cloud.layout import Layout
from tools.showcase import stage
from tools.showcase.report import Report
from tools.showcase.story import FLAVOR, IMAGE, Story

INTERRUPTED = 130
FAILED = "failed"
INTERRUPTION = "interrupted"


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "json_file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
              help="Also write every fact and timing to FILE.")
@click.option("--keep", is_flag=True, help="Leave the cloud up and tell how to use it; end it with: tools/demo down")
@click.option("--emulated", is_flag=True, help="Emulate the hardware even if this machine has some.")
@click.option("--since", type=float, default=time.time, hidden=True)
@click.option("--here", type=click.Path(path_type=Path), default=Path.cwd, hidden=True)
@click.pass_context
def main(context: click.Context, json_file: Path | None, keep: bool, emulated: bool, since: float, here: Path) -> None:
    """Show, on a real OpenStack of its own, servers that have a GPU and an InfiniBand virtual function each."""
    if os.geteuid() != 0:
        raise click.UsageError("It makes namespaces and containers, so it needs root: sudo tools/demo")
    context.obj = here
    if context.invoked_subcommand is None:
        with alone(Layout.default()):
            sys.exit(show(here / json_file if json_file else None, keep, emulated, since))


@main.command()
def down() -> None:
    """End a cloud that --keep left up."""
    with alone(Layout.default()):
        take_down(Layout.default())
    click.echo("Nothing of the cloud is left.")


@main.command("exec", context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_obj
def execute(here: Path, command: tuple[str, ...]) -> None:
    """Run COMMAND where a kept cloud is, for instance: openstack server list."""
    layout = Layout.default()
    if not layout.clouds_yaml.exists():
        raise click.ClickException("No cloud is up. Start one with: sudo tools/demo --keep")
    cloud = Cloud(layout)
    environment = {
        "OS_CLOUD": "admin", **os.environ, **cloud.engine.environment, "OS_CLIENT_CONFIG_FILE": str(layout.clouds_yaml),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    line = stage.inside(command) if stage.is_up() else list(command)
    os.chdir(here)
    os.execvpe(line[0], line, environment)  # noqa: S606 (the operator's own words)


@main.command(hidden=True)
def end() -> None:
    """End the cloud, where it is."""
    Cloud(Layout.default()).down()


@main.command(hidden=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path))
@click.option("--keep", is_flag=True)
@click.option("--since", type=float, required=True)
@click.option("--why-emulated")
def tell(json_file: Path | None, keep: bool, since: float, why_emulated: str | None) -> None:
    """Tell the story itself, where the devices are."""
    stage.end_on_signals()
    sys.exit(perform(Report(since), json_file, keep, why_emulated))


def show(json_file: Path | None, keep: bool, emulated: bool, since: float) -> int:
    """Choose the stage and let the story play there; the demo's exit status."""
    layout, report = Layout.default(), Report(since)
    if layout.in_use or stage.is_up():
        report.say("An earlier cloud is still there: taking it down")
        take_down(layout)
    reason = "asked for with --emulated" if emulated else stage.why_emulated()
    story = [sys.executable, "-m", "tools.showcase", "tell", "--since", str(since)]
    story += ["--json", str(json_file)] if json_file else []
    story += ["--keep"] if keep else []
    if not reason:
        return play(story)
    report.say(f"EMULATED HARDWARE: {reason}. LXD, nova and all the rest are real.", "bold yellow")
    try:
        stage.start(layout.directory / "fakehost.log")
        return play(stage.inside([*story, "--why-emulated", reason]))
    finally:
        if not (keep and layout.run.exists()):
            stage.stop()


@contextlib.contextmanager
def alone(layout: Layout) -> Iterator[None]:
    """One demo at a time in one checkout: the next one takes down what the last one left, not what another is using.

    :raises click.ClickException: another one is running
    """
    layout.directory.mkdir(exist_ok=True)
    with (layout.directory / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise click.ClickException("Another tools/demo is running in this checkout; wait for its end.") from None
        yield


def play(story: list[str]) -> int:
    """Run the story as a process of its own; its exit status."""
    process = subprocess.Popen(story)
    with stage.signals_passed_to(process):
        return process.wait()


def perform(report: Report, json_file: Path | None, keep: bool, why_emulated: str | None) -> int:
    """Bring the cloud up, tell the story, take the cloud down; 0 only if every fact holds."""
    layout, error = Layout.default(), None
    pairs = stage.pairs()
    offers = hardware.offers(pairs)
    cloud = Cloud(layout, offers, owners=None if why_emulated else DIRECTORY, say=report.say)
    shutil.rmtree(layout.directory / FAILED, ignore_errors=True)
    report.setting = setting_of(cloud, pairs, why_emulated)
    if cloud.memlock != "unlimited":
        report.say(f"This machine lets nobody lock more than {cloud.memlock} bytes of memory, so RDMA servers get that "
                   "instead of unlimited ([lxd] rdma_memlock)", "yellow")
    try:
        report.chapter("The cloud")
        with report.timed("cloud up"):
            cloud.up()
        Story(cloud, pairs, offers, report, emulated=why_emulated is not None).tell()
    except KeyboardInterrupt:
        error = INTERRUPTION
    except Exception as failure:  # whatever it was, the cloud must go and the reader must know
        error = f"{type(failure).__name__}: {failure}"
    if error:
        report.say(error, "bold red")
        report.setting["error"] = error
    if error and error != INTERRUPTION:
        keep_logs(layout, report)
    kept = keep and not error
    if not kept:
        report.chapter("Taking the cloud down")
        with report.timed("cloud down"):
            cloud.down()
    report.summary()
    if kept:
        tell_how_to_use(cloud, report)
    if json_file:
        report.write_json(json_file)
    if error == INTERRUPTION:
        return INTERRUPTED
    return 0 if report.ok and not error else 1


def setting_of(cloud: Cloud, pairs: tuple[hardware.Pair, ...], why_emulated: str | None) -> dict[str, Any]:
    """Return what the facts were shown on."""
    return {
        "hardware": {"emulated": why_emulated is not None, "why": why_emulated,
                     "pairs": [{"gpu": pair.gpu.to_dict(), "vf": pair.vf.to_dict()} for pair in pairs]},
        "memlock": cloud.memlock, "versions": cloud.versions()}


def take_down(layout: Layout) -> None:
    """End the cloud wherever it is, and the namespace if there is one."""
    if layout.in_use:
        command = [sys.executable, "-m", "tools.showcase", "end"]
        subprocess.run(stage.inside(command) if stage.is_up() else command, check=True)
    stage.stop()


def keep_logs(layout: Layout, report: Report) -> None:
    """Keep the logs of a cloud that failed."""
    kept = layout.directory / FAILED
    if layout.logs.exists():
        shutil.copytree(layout.logs, kept)
        for log in (layout.engine / "logs").glob("*/*.log"):  # of the containers; pipes are beside them
            shutil.copyfile(log, kept / f"{log.parent.name}-{log.name}")
        report.say(f"All logs are kept in {kept}")


def tell_how_to_use(cloud: Cloud, report: Report) -> None:
    report.chapter("The cloud stays up")
    for line in ("sudo tools/demo exec openstack server list --all-projects",
                 f"sudo tools/demo exec openstack --os-cloud {TENANT} server create --flavor {FLAVOR} --image {IMAGE} "
                 "--nic none mine",
                 f"sudo tools/demo exec {cloud.engine.flavour.client} list",
                 f"sudo tools/demo exec containerhost list --owners {cloud.owners}",
                 "sudo tools/demo down"):
        report.command(line)


if __name__ == "__main__":
    main()
