# SPDX-License-Identifier: Apache-2.0
"""Run ``containerhost elastic``: the service that divides cores and memory and replaces GPUs, its plan, its status."""

import json
import logging
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from containerhost.allocation.store import DIRECTORY as OWNERS
from containerhost.elastic import state
from containerhost.elastic.gpus import EngineGpus
from containerhost.elastic.policies import POLICIES
from containerhost.elastic.service import ManagedEngine, Options, Service
from containerhost.elastic.state import StateFile
from containerhost.engines import local
from containerhost.engines.docker.recordfiles import DIRECTORY as RECORDS
from containerhost.errors import EngineBusy
from containerhost.guest.guestfiles import GuestFiles
from containerhost.guest.guestnotice import GuestNotice
from containerhost.linux.idlist import id_list, id_text
from containerhost.linux.lock import FileLock
from containerhost.operator import clioptions
from containerhost.operator.reports.report import printable, table

LOCK = "lock"
SAMPLE = 1.5  # s between the two samples of usage
MIB = 20  # bits

directory = click.option("--state", "state_directory", default=state.DIRECTORY, show_default=True, metavar="DIR",
                         type=click.Path(file_okay=False, path_type=Path), help="Where the service keeps its state.")


def of_service(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select what the service divides, and how."""
    for option in (
        click.option("--engine", "engines", multiple=True, required=True, metavar="NAME[=ENDPOINT]",
                     help="lxd, incus or docker; several are one host's."),
        click.option("--project", default="", help="Of LXD or Incus; the default one if not given."),
        click.option("--policy", type=click.Choice(sorted(POLICIES)), default="fair", show_default=True,
                     help="How cores and memory are divided."),
        click.option("--reserved-cores", default="", metavar="LIST", help="Cores that are kept free, such as 0-1,32."),
        click.option("--reserved-memory", type=click.IntRange(0), default=1024, show_default=True, metavar="MIB",
                     help="Memory of the host that stays free."),
        click.option("--notice", type=click.FloatRange(0), default=30.0, show_default=True, metavar="SECONDS",
                     help="Time that a guest has to release resources before they are taken."),
        click.option("--records", default=RECORDS, metavar="DIR", type=click.Path(file_okay=False, path_type=Path),
                     help="The records of containers on Docker."),
        clioptions.owners,
        directory,
    ):
        command = option(command)
    return command


def service_of(engines: tuple[str, ...], project: str, policy: str, reserved_cores: str, reserved_memory: int,
               notice: float, records: Path, owners_directory: Path | None, state_directory: Path) -> Service:
    locks = owners_directory or OWNERS
    options = Options(policy, notice, id_list(reserved_cores), reserved_memory << MIB, locks)
    settings = local.Settings("", project, locks, records)
    return Service(dict(managed(text, settings) for text in engines), options,
                   StateFile(state_directory))


def managed(text: str, settings: local.Settings) -> tuple[str, ManagedEngine]:
    """Return an engine by its name, ``docker``, or its name and endpoint, ``docker=unix:///run/docker.sock``."""
    name, _, endpoint = text.partition("=")
    found = local.load(name, local.Settings(endpoint, settings.project, settings.locks, settings.records))
    # The service measures the notice period itself, so the notice must not wait.
    notice = GuestNotice(GuestFiles(found.engine.pid, found.privileged), 0)
    gpus = EngineGpus(found.engine, found.marks, found.privileged, settings.locks) if found.marks else None
    return name, ManagedEngine(found.engine, found.sizes, notice, gpus)


@click.group()
def elastic() -> None:
    """Resize running containers that opted in."""


@elastic.command()
@of_service
@click.option("--interval", type=click.FloatRange(0.5), default=5.0, show_default=True, metavar="SECONDS",
              help="Time from one round to the next.")
@click.option("--listen", metavar="ADDRESS:PORT", help="Where to serve metrics to Prometheus; nowhere if not given.")
@click.option("--dry-run", is_flag=True, help="Print what would be done, round by round, and change nothing.")
def run(interval: float, listen: str | None, dry_run: bool, state_directory: Path, **options: Any) -> None:
    """Divide cores and memory in rounds until terminated. Needs root."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    service = service_of(state_directory=state_directory, **options)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if listen:
        serve(listen, service)
    if dry_run:
        before = None
        while not stop.is_set():
            rows = service.plan()
            if rows != before:
                click.echo(listed(rows))
            before = rows
            stop.wait(interval)
        return
    with FileLock(state_directory / LOCK, 0).held(lambda reason: EngineBusy(
            f"another elastic service runs on this host: {reason}")):
        service.run(stop, interval)


def serve(address: str, service: Service) -> None:
    try:
        from containerhost.elastic.metrics import ElasticCollector  # noqa: PLC0415  (of the extra ``exporter``)
        from containerhost.operator.exporter import server  # noqa: PLC0415  (likewise)
    except ModuleNotFoundError as error:
        raise click.ClickException(f"metrics need {error.name}: install nova-lxd-ext[exporter]") from error
    server.serve(address, ElasticCollector(lambda: (service.seen, dict(service.done))))


@elastic.command()
@of_service
@clioptions.as_json
def plan(as_json: bool, **options: Any) -> None:
    """Show the target of each container that opted in. Changes nothing."""
    service = service_of(**options)
    rows = service.plan()
    if options["policy"] == "load" and rows:
        time.sleep(SAMPLE)
        rows = service.plan()
    click.echo(json.dumps(rows, indent=1) if as_json else listed(rows))


@elastic.command()
@directory
@clioptions.as_json
def status(as_json: bool, state_directory: Path) -> None:
    """Show the service's last round and its pending changes. Queries no engine."""
    found = StateFile(state_directory).read()
    if as_json:
        click.echo(json.dumps(dict(found.seen), indent=1))
    elif not found.seen:
        click.echo(f"no service has divided anything: there is no {state_directory / state.FILE}")
    else:
        click.echo(f"policy {found.seen['policy']}: {len(found.seen['cores'])} cores and "
                   f"{found.seen['memory'] >> MIB} MiB, {max(0, int(time.time()) - found.seen['time'])} s ago")
        click.echo(listed(found.seen["containers"]))


def listed(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "no container that runs has opted in"
    sizes, gpus = [row for row in rows if "cores" in row], [row for row in rows if "gpus" in row]
    return "\n\n".join([*([listed_sizes(sizes)] if sizes else []), *([listed_gpus(gpus)] if gpus else [])])


def listed_sizes(rows: list[dict[str, Any]]) -> str:
    return table(("container", "cores", "which", "wanted", "of", "memory", "wanted", "of", "busy", ""), [
        (printable(row["container"]), str(row["count"]), id_text(row["cores"]) or "any", str(row["wanted"]),
         f"{row['least']}-{row['most']}", str(row["memory"] >> MIB), str(row["memory_wanted"] >> MIB),
         f"{row['memory_least'] >> MIB}-{row['memory_most'] >> MIB}", "" if row["used"] is None else str(row["used"]),
         "announced" if row["announced"] else "") for row in rows])


def listed_gpus(rows: list[dict[str, Any]]) -> str:
    return table(("container", "gpus", "of", "which", "without", ""), [
        (printable(row["container"]), str(len(row["gpus"]["present"])), f"{row['gpus']['least']}-{row['gpus']['most']}",
         ", ".join(row["gpus"]["present"]) or "none",
         ", ".join(f"{name} ({printable(why)})" if why else name for name, why in row["gpus"]["detached"].items()),
         "announced" if row["announced"] else "") for row in rows])
