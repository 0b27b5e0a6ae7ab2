# SPDX-License-Identifier: Apache-2.0
"""Run the command ``hpcjob``: start all containers of a job in a cloud or none, and remove them again."""

import json
import os
import signal
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import click

from hpcjob import gang
from hpcjob.errors import BadJob, GangFailed, JobError, Leftover
from hpcjob.files import rank_map
from hpcjob.job import Job, parse

ANSWER_TIMEOUT = 60  # seconds for a request of OpenStack
CLOUDS = click.Choice(["openstack", "opennebula"])
_cloud = click.option("--os-cloud", metavar="NAME", help="Cloud of clouds.yaml; OS_CLOUD or OS_ variables if absent.")


class Commands(click.Group):
    """Commands for which every error of this package is a message and status 1, not a traceback."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except JobError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=Commands)
@click.version_option(package_name="nova-lxd-ext")
def main() -> None:
    """Start all containers of an MPI or ML job in a cloud, or none of them."""


@main.command()
@click.argument("cloud", type=CLOUDS)
@click.argument("jobfile", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_cloud
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def start(cloud: str, jobfile: Path, os_cloud: str | None, as_json: bool) -> None:
    """Start the job of a JOBFILE and print its id and rank map when all members run."""
    job = parse(jobfile.read_text())
    job.cloud(cloud)
    connected = connect(cloud, os_cloud)
    ident = gang.new_ident(job)
    click.echo(f"job {ident}", err=True)
    with Interrupts(job, cloud, ident) as interrupts:
        try:
            members = gang.start(connected, job, ident, before_remove=interrupts.removing)
        except Interrupted as error:  # before or after what ``gang.start`` undoes itself
            interrupts.removing()
            gang.remove(connected, ident)
            raise GangFailed(f"{error}; all members are removed") from error
    if as_json:
        click.echo(json.dumps({"id": ident, "members": [asdict(member) for member in members]}))
        return
    click.echo(f"id {ident}")
    hosts = [f" {member.host}" for member in members]
    for line, host in zip(rank_map(members).splitlines(), hosts, strict=True):
        click.echo(line + host)


@main.command()
@click.argument("cloud", type=CLOUDS)
@click.argument("ident")
@_cloud
def delete(cloud: str, ident: str, os_cloud: str | None) -> None:
    """Remove all that carries a job's id. Repeatable."""
    connected = connect(cloud, os_cloud)
    if gang.remove(connected, ident):
        return
    others = connected.of_others(ident)
    if others:
        raise Leftover(f"nothing was removed: {', '.join(others)}: the job's owner removes it")
    click.echo(f"job {ident}: nothing was found that this user may remove", err=True)


def connect(cloud: str, os_cloud: str | None) -> gang.Cloud:
    """Return the cloud with the credentials of the usual places: none is on the command line.

    :raises BadJob: its client library is not installed, or there are no credentials
    """
    try:
        return _openstack(os_cloud) if cloud == "openstack" else _opennebula()
    except ImportError as error:
        raise BadJob(f"{error.name} is not installed: pip install 'nova-lxd-ext[hpcjob]'") from error


def _openstack(os_cloud: str | None) -> gang.Cloud:
    import openstack  # noqa: PLC0415  (each cloud's library is needed for that cloud alone)

    from hpcjob.openstack import OpenStack  # noqa: PLC0415  (likewise)

    try:
        return OpenStack(openstack.connect(cloud=os_cloud, api_timeout=ANSWER_TIMEOUT))
    except openstack.exceptions.ConfigException as error:
        raise BadJob(f"{error}: name a cloud of clouds.yaml by --os-cloud, or set OS_CLOUD") from error


def _opennebula() -> gang.Cloud:
    import pyone  # noqa: PLC0415  (likewise)

    from hpcjob.opennebula import OpenNebula  # noqa: PLC0415  (likewise)

    path = Path(os.environ.get("ONE_AUTH") or Path.home() / ".one" / "one_auth")
    try:
        session = path.read_text().strip()
    except OSError as error:
        raise BadJob(f"{path}: {error.strerror}: ONE_AUTH names a file with USER:TOKEN") from error
    return OpenNebula(pyone.OneServer(os.environ.get("ONE_XMLRPC", "http://localhost:2633/RPC2"), session=session))


class Interrupted(GangFailed):
    """Report that a signal ended the start."""


class Interrupts:
    """A context manager for signals: the first SIGINT, SIGTERM or SIGHUP ends the start.

    From then on, and as soon as anything is removed, they are ignored, because a removal that ends early leaves
    containers behind. An alarm ends requests that have no time limit of their own (pyone)."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self, job: Job, cloud: str, ident: str) -> None:
        self._job, self._cloud, self._ident = job, cloud, ident
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        for number in (*self.SIGNALS, signal.SIGALRM):
            self._before[number] = signal.signal(number, self._interrupt)
        signal.setitimer(signal.ITIMER_REAL, self._job.timeout + ANSWER_TIMEOUT)
        return self

    def __exit__(self, *args: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def removing(self) -> None:
        """Let nothing but the alarm end what follows."""
        for number in self.SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, self._leave)
        signal.setitimer(signal.ITIMER_REAL, gang.REMOVE_TIMEOUT + ANSWER_TIMEOUT)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGALRM:
            raise Interrupted(f"time limit: the cloud does not answer, {self._job.timeout + ANSWER_TIMEOUT} s after "
                              f"the start")
        for other in self.SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        raise Interrupted(f"interrupted by {signal.Signals(number).name}")

    def _leave(self, number: int, frame: FrameType | None) -> None:
        raise Leftover(f"the cloud does not answer, so it is unknown what is left. Try again: hpcjob delete "
                       f"{self._cloud} {self._ident}")


if __name__ == "__main__":
    main()
