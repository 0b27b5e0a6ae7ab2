# SPDX-License-Identifier: Apache-2.0
"""The commands of tools/demo: a cloud for each story, of devices, an MPI job, a Slurm cluster and others."""

import contextlib
import fcntl
import functools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from containerhost.allocation.store import DIRECTORY
from tools import debian
from tools.aicloudrun import story as aicloudrun
from tools.cloud import dashboard, hardware
from tools.cloud.cloud import Cloud
from tools.cloud.identity import TENANT
from tools.cloud.layout import CHECKOUT, PLAIN, Layout, Shape
from tools.debianimage import DebianImage
from tools.elasticjobs import image as elasticjobs
from tools.mpi import image
from tools.showcase import breakfix as breaking
from tools.showcase import stage
from tools.showcase.ansible import DIRECTORIES, AnsibleStory
from tools.showcase.breakfix import BreakfixStory
from tools.showcase.elastic import ElasticStory
from tools.showcase.mpi import MpiStory
from tools.showcase.report import Report
from tools.showcase.slurm import SlurmStory
from tools.showcase.slurm import recipe as slurm_recipe
from tools.showcase.soak import Soak
from tools.showcase.story import FLAVOR, IMAGE, Story

INTERRUPTED = 130
FAILED = "failed"
INTERRUPTION = "interrupted"
DASHBOARD = Shape(networks=True, dashboard=True)
"""Horizon's form for a new server wants a network."""
NETWORKS = Shape(networks=True)
TWO_HOSTS = Shape(networks=True, second_host=True)
NO_COMPUTE = Shape(compute=False)
NOTIFYING = Shape(notifications=True)
SOAKING = Shape(look=10)
AICLOUD = Shape(networks=True, notifications=True, look=10)
CREATE = f"openstack --os-cloud {TENANT} server create"
JOB = f"env OS_CLOUD={TENANT} hpcjob start openstack examples"
Command = Callable[..., Any]
CLOUDS: list[tuple[Layout, Shape]] = []
"""The clouds of all stories."""


def of_demo(command: Command) -> Command:
    """Add the options of a demo."""
    for option in (
        click.option("--json", "json_file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
                     help="Also write every fact and timing to FILE."),
        click.option("--keep", is_flag=True,
                     help="Leave the cloud up and tell how to use it; end it with: tools/demo down"),
    ):
        command = option(command)
    return command


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@of_demo
@click.option("--emulated", is_flag=True, help="Emulate the hardware even if this machine has some.")
@click.option("--horizon", is_flag=True, help="Show it in Horizon too: a headless browser does what people do.")
@click.option("--since", type=float, default=time.time, hidden=True)
@click.option("--here", type=click.Path(path_type=Path), default=Path.cwd, hidden=True)
@click.option("--playing", is_flag=True, hidden=True, help="This process is where the devices are.")
@click.option("--why-emulated", hidden=True)
@click.pass_context
def main(context: click.Context, json_file: Path | None, keep: bool, emulated: bool, horizon: bool, since: float,
         here: Path, playing: bool, why_emulated: str | None) -> None:
    """Show, on a real OpenStack of its own, servers that have a GPU and an InfiniBand virtual function each."""
    if os.geteuid() != 0:
        raise click.UsageError("It makes namespaces and containers, so it needs root: sudo tools/demo")
    context.obj = here
    if context.invoked_subcommand is None:
        if playing:
            sys.exit(tell(here / json_file if json_file else None, keep, horizon, since, why_emulated))
        with alone(Layout.default()):
            sys.exit(show(keep, emulated, horizon, since))


def layout_of(name: str) -> Layout:
    return Layout(CHECKOUT / ".demo" / name)


def demo(notice: str, shape: Shape = PLAIN, *, use: str, recipe: Callable[[], DebianImage] | None = None,
         devices: bool = False, before: Callable[..., None] = lambda report, **_: None, behind: Sequence[str] = (),
         ) -> Callable[[Command], click.Command]:
    """Make a story a command of tools/demo, with a cloud of its own on an emulated host.

    The function is called there, with the cloud, the report and its own options.

    :param notice: tells the reader what is emulated
    :param use: a command for a cloud that stays up
    :param recipe: of an image; its packages are fetched first, because an emulated host reaches no mirror of Debian
    :param devices: whether the cloud offers devices to servers
    :param before: is called on this machine, with the report and the function's options
    :param behind: the start of the command line on the emulated host
    """
    def made(story: Command) -> click.Command:
        layout = layout_of(story.__name__)
        CLOUDS.append((layout, shape))

        @main.command()
        @of_demo
        @click.pass_context
        @functools.wraps(story)
        def command(context: click.Context, json_file: Path | None, keep: bool, **options: Any) -> None:
            root = context.find_root().params
            if root["playing"]:
                stage.end_on_signals()
                report = Report(root["since"])
                cloud = Cloud(layout, hardware.offers(stage.pairs()) if devices else (), say=report.say, shape=shape)
                report.setting = {"versions": cloud.versions()}
                sys.exit(perform(cloud, report, lambda: story(cloud, report, **options),
                                 root["here"] / json_file if json_file else None,
                                 (f"sudo tools/demo exec {use}",) if keep else ()))
            with alone(Layout.default()):
                report = Report(root["since"])
                take_down_earlier(report)
                report.say(f"{notice} LXD, nova and all the rest are real.", "bold yellow")
                if recipe:
                    fetch(recipe(), report)
                before(report, **options)
                sys.exit(play_emulated([*behind, *same_command(root["since"])], layout, keep))

        return command

    return made


@demo("Two hosts are emulated on this machine.", TWO_HOSTS, use=f"{JOB}/mpi/job.yaml", recipe=image.recipe)
def mpi(cloud: Cloud, report: Report) -> None:
    """Show an MPI job of four containers on two emulated hosts, started by one command."""
    MpiStory(cloud, report).tell()


@demo("The host's devices are emulated.", NETWORKS, use=f"{JOB}/slurm/job.yaml", recipe=slurm_recipe, devices=True)
def slurm(cloud: Cloud, report: Report) -> None:
    """Show a Slurm cluster of containers, whose idle nodes go back to the cloud until a job waits for them."""
    SlurmStory(cloud, cloud.offers, report).tell()


@demo("GPUs, their faults and resets are emulated.", NOTIFYING, recipe=breaking.recipe, devices=True,
      use=f"{CREATE} --flavor {breaking.FLAVOR} --image {breaking.IMAGE} --nic none mine")
def breakfix(cloud: Cloud, report: Report) -> None:
    """Show a GPU that breaks under a server, which goes on without it until it is repaired."""
    BreakfixStory(cloud, cloud.offers[0], report).tell()


@demo("The host's devices and their faults are emulated.", SOAKING, devices=True,
      use=f"{CREATE} --flavor {FLAVOR} --image {IMAGE} --nic none mine")
@click.option("--minutes", type=float, default=60.0, show_default=True, help="Of load.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the requests and the faults.")
def soak(cloud: Cloud, report: Report, minutes: float, seed: int) -> None:
    """Put a mixed load with faults on a cloud, and see whether its services stay as large as they are."""
    Soak(cloud, cloud.offers, report, minutes * 60, seed).tell()


def install_suite(report: Report, suite: Path, **_: object) -> None:
    report.say("Installing the suite")
    aicloudrun.install(suite)


@demo("The host's devices are emulated.", AICLOUD, use=f"openstack --os-cloud {TENANT} server list",
      recipe=aicloudrun.recipe, devices=True, before=install_suite)
@click.option("--suite", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="A checkout of github.com/NVIDIA/ai-cloud-validation.")
@click.argument("suites", nargs=-1, type=click.Choice(list(aicloudrun.SUITES)))
def aicloud(cloud: Cloud, report: Report, suite: Path, suites: tuple[str, ...]) -> None:
    """Run the AI-cloud validation suite with this project's provider."""
    aicloudrun.AicloudStory(cloud, cloud.offers, report, suite, suites).tell()


@demo("The host is emulated. Ansible and dpkg,", NO_COMPUTE, use="openstack flavor list --all",
      behind=(str(CHECKOUT / "tools/overlay"), *DIRECTORIES, "--"))
@click.option("--package", required=True, hidden=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def ansible(cloud: Cloud, report: Report, package: Path) -> None:
    """Show how Ansible makes an emulated host a compute node: from its package to the first server with a GPU."""
    report.setting["package"] = package.name
    AnsibleStory(cloud, report, package).tell()


@demo("The host's devices are emulated, its cores are not.", recipe=elasticjobs.recipe,
      use=f"{CREATE} --flavor elastic --image elastic-jobs --nic none mine")
def elastic(cloud: Cloud, report: Report) -> None:
    """Show three servers that trade the cores of this machine, with a program that follows and one that does not."""
    ElasticStory(cloud, report).tell()


@main.command()
def down() -> None:
    """End a cloud that --keep left up."""
    with alone(Layout.default()):
        take_down()
    click.echo("Nothing of the cloud is left.")


@main.command("exec", context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_obj
def execute(here: Path, command: tuple[str, ...]) -> None:
    """Run COMMAND where a kept cloud is, for instance: openstack server list."""
    up = [(layout, shape) for layout, shape in in_use() if layout.clouds_yaml.exists()]
    if not up:
        raise click.ClickException("No cloud is up. Start one with: sudo tools/demo --keep")
    cloud = Cloud(up[0][0], shape=up[0][1])
    private = {"CONTAINERHOST_OWNERS": str(cloud.owners)} if cloud.owners.is_dir() else {}
    environment = {
        "OS_CLOUD": "admin", **private, **os.environ, **cloud.engine.environment,
        "OS_CLIENT_CONFIG_FILE": str(cloud.layout.clouds_yaml),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    line = stage.inside(command) if stage.is_up() else list(command)
    os.chdir(here)
    os.execvpe(line[0], line, environment)  # noqa: S606 (the operator's own words)


@main.command(hidden=True)
def end() -> None:
    """End the cloud, where it is."""
    for layout, shape in in_use():
        Cloud(layout, shape=shape).down()


def tell(json_file: Path | None, keep: bool, horizon: bool, since: float, why_emulated: str | None) -> int:
    """Tell the story of two servers, where the devices are; the demo's exit status."""
    stage.end_on_signals()
    report = Report(since)
    pairs = stage.pairs()
    offers = hardware.offers(pairs)
    cloud = Cloud(layout_of("horizon") if horizon else Layout.default(), offers,
                  owners=None if why_emulated else DIRECTORY, say=report.say, shape=DASHBOARD if horizon else PLAIN)
    report.setting = setting_of(cloud, pairs, why_emulated)
    if cloud.memlock != "unlimited":
        report.say(f"This machine lets nobody lock more than {cloud.memlock} bytes of memory, so RDMA servers get that "
                   "instead of unlimited ([lxd] rdma_memlock)", "yellow")

    def story() -> None:
        Story(cloud, pairs, offers, report, why_emulated is not None).tell()
        if horizon:
            tell_horizon(cloud, report, len(pairs[0].devices))

    return perform(cloud, report, story, json_file, how_to_use(cloud) if keep else ())


def tell_horizon(cloud: Cloud, report: Report, devices: int) -> None:
    """Show the same in Horizon.

    :param devices: how many the demo's flavor gives
    """
    from tools.showcase.dashboard import Dashboard  # noqa: PLC0415 (a browser's driver is there with --horizon alone)

    Dashboard(cloud, report, Layout.default().directory / "screenshots", devices).tell(FLAVOR, IMAGE)


@main.command("restart-aliases", hidden=True)
def restart_aliases() -> None:
    """Restart what has read the aliases of devices: Ansible's handler calls it."""
    Cloud(layout_of("ansible"), shape=NO_COMPUTE).restart_aliases()


def in_use() -> list[tuple[Layout, Shape]]:
    """Return the clouds of all stories of which there is anything."""
    every = [(Layout.default(), PLAIN), (layout_of("horizon"), DASHBOARD), *CLOUDS]
    return [(layout, shape) for layout, shape in every if layout.in_use]


def show(keep: bool, emulated: bool, horizon: bool, since: float) -> int:
    """Choose the stage and let the story play there; the demo's exit status."""
    report = Report(since)
    take_down_earlier(report)
    reason = "asked for with --emulated" if emulated else stage.why_emulated()
    if not reason:
        return play(same_command(since))
    report.say(f"EMULATED HARDWARE: {reason}. LXD, nova and all the rest are real.", "bold yellow")
    return play_emulated(same_command(since, "--why-emulated", reason),
                         layout_of("horizon") if horizon else Layout.default(), keep)


def same_command(since: float, *words: str) -> list[str]:
    """Return the command line of the process that tells the story: that of this process, and some words more."""
    return [sys.executable, "-m", "tools.showcase", "--playing", "--since", str(since), *words, *sys.argv[1:]]


def fetch(recipe: DebianImage, report: Report) -> None:
    """Fetch an image's packages now: an emulated host reaches no mirror of Debian.

    :raises click.ClickException: they cannot be had
    """
    try:
        recipe.packages(report.say)
    except debian.Failed as error:
        raise click.ClickException(str(error)) from error


def take_down_earlier(report: Report) -> None:
    if in_use() or stage.is_up():
        report.say("An earlier cloud is still there: taking it down")
        take_down()


def play_emulated(story: list[str], layout: Layout, keep: bool) -> int:
    """Run the story in the namespace with emulated hardware, which stays with a cloud that is kept."""
    try:
        stage.start(layout.directory / "fakehost.log")
        return play(stage.inside(story))
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


def perform(cloud: Cloud, report: Report, story: Callable[[], None], json_file: Path | None, use: Sequence[str]) -> int:
    """Bring the cloud up, tell the story, take the cloud down; 0 only if every fact holds.

    :param use: commands for a cloud that stays up; one with none is taken down
    """
    layout, error = cloud.layout, None
    shutil.rmtree(layout.directory / FAILED, ignore_errors=True)
    try:
        report.chapter("The cloud")
        with report.timed("cloud up"):
            cloud.up()
        story()
    except KeyboardInterrupt:
        error = INTERRUPTION
    except Exception as failure:  # whatever it was, the cloud must go and the reader must know
        error = f"{type(failure).__name__}: {failure}"
    if error:
        report.say(error, "bold red")
        report.setting["error"] = error
    if error and error != INTERRUPTION:
        keep_logs(cloud, report)
    kept = use and not error
    if not kept:
        report.chapter("Taking the cloud down")
        with report.timed("cloud down"):
            cloud.down()
    report.summary()
    if kept:
        report.chapter("The cloud stays up")
        for line in (*use, "sudo tools/demo exec openstack server list --all-projects", "sudo tools/demo down"):
            report.command(line)
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


def take_down() -> None:
    """End the cloud wherever it is, and the namespace if there is one."""
    if in_use():
        command = [sys.executable, "-m", "tools.showcase", "end"]
        subprocess.run(stage.inside(command) if stage.is_up() else command, check=True)
    stage.stop()


def keep_logs(cloud: Cloud, report: Report) -> None:
    """Keep the logs of a cloud that failed."""
    kept = cloud.layout.directory / FAILED
    if cloud.layout.logs.exists():
        shutil.copytree(cloud.layout.logs, kept)
        for engine in cloud.engines:
            for log in (engine.directory / "logs").glob("*/*.log"):  # of the containers; pipes are beside them
                shutil.copyfile(log, kept / f"{log.parent.name}-{log.name}")
        report.say(f"All logs are kept in {kept}")


def how_to_use(cloud: Cloud) -> tuple[str, ...]:
    return (f"sudo tools/demo exec openstack --os-cloud {TENANT} server create --flavor {FLAVOR} --image {IMAGE} "
            "--nic none mine",
            f"sudo tools/demo exec {cloud.engine.flavour.client} list",
            "sudo tools/demo exec containerhost list",
            *([f"sudo tools/demo exec chromium --no-sandbox {dashboard.url(cloud.ports)}"]
              if cloud.shape.dashboard else []))


if __name__ == "__main__":
    main()
