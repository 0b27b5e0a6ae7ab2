# SPDX-License-Identifier: Apache-2.0
"""Run the command ``hpcjob``: start all containers of a job in a cloud or none, replace one, remove them."""

import json
import os
import signal
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import replace as changed
from pathlib import Path
from types import FrameType
from typing import Any

import click

from hpcjob import gang, keys
from hpcjob.errors import BadJob, GangFailed, JobError, Leftover
from hpcjob.files import rank_map
from hpcjob.job import Member, parse
from hpcjob.record import Record, Records

ANSWER_TIMEOUT = 60  # seconds for one OpenStack request
CLOUDS = click.Choice(["openstack", "opennebula"])
_cloud = click.option("--os-cloud", metavar="NAME", help="Cloud of clouds.yaml; OS_CLOUD or OS_ variables if absent.")


class Commands(click.Group):
    """Show errors of this package as a message with a status, not as a traceback."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except JobError as error:
            click.echo(f"Error: {error}", err=True)
            context.exit(error.status)


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
    """Start the job of a JOBFILE, and print its id and rank map when all members run."""
    text = jobfile.read_text()
    job = parse(text)
    job.cloud(cloud)
    connected = connect(cloud, os_cloud)
    ident = gang.new_ident(job)
    click.echo(f"job {ident}", err=True)
    key = keys.make(ident)
    with Interrupts(job.timeout, f"hpcjob delete {cloud} {ident}") as interrupts:
        try:
            members = gang.start(connected, job, ident, before_remove=interrupts.removing, key=key)
            try:
                Records().save(ident, Record(cloud, text, tuple(members), key))
            except BadJob as error:
                click.echo(f"no member of this job can be replaced: {error}", err=True)
        except Interrupted as error:  # outside the part that ``gang.start`` itself reverts
            interrupts.removing()
            gang.remove(connected, ident)
            Records().forget(ident)
            raise GangFailed(f"{error}; all members are removed") from error
    if as_json:
        click.echo(json.dumps({"id": ident, "members": [asdict(member) for member in members]}))
        return
    click.echo(f"id {ident}")
    _print(members)


def _print(members: Sequence[Member]) -> None:
    for line, member in zip(rank_map(members).splitlines(), members, strict=True):
        click.echo(f"{line} {member.host}")


@main.command()
@click.argument("cloud", type=CLOUDS)
@click.argument("ident")
@click.argument("rank", type=click.IntRange(min=0))
@_cloud
@click.option("--force", is_flag=True, help="Also a member that the cloud says runs: its host fails.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def replace(cloud: str, ident: str, rank: int, os_cloud: str | None, force: bool, as_json: bool) -> None:
    """Recreate the member of a RANK on another host, with its name, address and key. Repeatable.

    Status 0: it runs; restart the program from its checkpoint. 3: it is not broken; nothing was changed. 4: the rank
    may have no member, and the message has the command to continue. 1: nothing was changed.
    """
    records = Records()
    with records.locked(ident):
        record = records.load(ident)
        job = parse(record.text)
        if (cloud, rank < job.members) != (record.cloud, True):
            raise BadJob(f"job {ident} is on {record.cloud} and has ranks 0 to {job.members - 1}")

        def keep(member: Member) -> None:
            members = [member if member.rank == old.rank else old for old in record.members]
            records.save(ident, changed(record, members=tuple(members)))

        connected = connect(cloud, os_cloud)
        with Interrupts(job.timeout + int(gang.REMOVE_TIMEOUT), f"hpcjob replace {cloud} {ident} {rank}"):
            member = gang.replace(connected, job, ident, record.members, rank, record.key, force, before_remove=keep)
        if member.host == records.load(ident).members[rank].host:
            click.echo(f"{member.name} is on its old host again: if it fails, an operator disables it", err=True)
        try:
            keep(member)
        except BadJob as error:  # the member runs nevertheless
            click.echo(str(error), err=True)
    if as_json:
        click.echo(json.dumps({"id": ident, "member": asdict(member)}))
        return
    _print([member])


@main.command()
@click.argument("cloud", type=CLOUDS)
@click.argument("ident")
@_cloud
def delete(cloud: str, ident: str, os_cloud: str | None) -> None:
    """Remove everything with a job's id. Repeatable."""
    connected = connect(cloud, os_cloud)
    records = Records()
    with records.locked(ident):
        if gang.remove(connected, ident):
            records.forget(ident)
            return
    others = connected.of_others(ident)
    if others:
        raise Leftover(f"nothing was removed: {', '.join(others)}: the job's owner removes it")
    click.echo(f"job {ident}: nothing was found that this user may remove", err=True)


def connect(cloud: str, os_cloud: str | None) -> gang.Cloud:
    """Return the cloud with the credentials of the default places, never from the command line.

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
    """Signal that the command was interrupted by a signal."""


class Interrupts:
    """Handle signals: the first SIGINT, SIGTERM or SIGHUP ends the start or the replacement.

    Afterwards, and once a removal begins, they are ignored, because an interrupted removal leaves containers behind.
    An alarm ends requests without a time limit of their own (pyone).

    :param timeout: seconds that the command may take
    :param again: the command to continue
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self, timeout: int, again: str) -> None:
        self._timeout, self._again = timeout + ANSWER_TIMEOUT, again
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        for number in (*self.SIGNALS, signal.SIGALRM):
            self._before[number] = signal.signal(number, self._interrupt)
        signal.setitimer(signal.ITIMER_REAL, self._timeout)
        return self

    def __exit__(self, *args: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def removing(self) -> None:
        """Ignore all signals except the alarm from now on."""
        for number in self.SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, self._leave)
        signal.setitimer(signal.ITIMER_REAL, gang.REMOVE_TIMEOUT + ANSWER_TIMEOUT)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGALRM:
            raise Interrupted(f"time limit: the cloud does not answer, {self._timeout} s after the start")
        for other in self.SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        raise Interrupted(f"interrupted by {signal.Signals(number).name}")

    def _leave(self, number: int, frame: FrameType | None) -> None:
        raise Leftover(f"the cloud does not answer, so the remains are unknown. Try again: {self._again}")


if __name__ == "__main__":
    main()
