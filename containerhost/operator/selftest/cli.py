# SPDX-License-Identifier: Apache-2.0
"""Provide the command ``containerhost selftest``."""

import collections
import dataclasses
import json
import logging
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.devices.findings import Severity
from containerhost.devices.model import Kind, Role
from containerhost.engines import local
from containerhost.engines.docker.recordfiles import DIRECTORY as RECORDS
from containerhost.errors import EngineBusy, EngineUnavailable, NoPlacement, SpecError
from containerhost.inventory import devicechoice, freedevices
from containerhost.inventory.scan import HostView
from containerhost.linux.lock import FileLock
from containerhost.linux.process import rungroup
from containerhost.linux.sysfs import Host
from containerhost.operator import clioptions, doctor, dump
from containerhost.operator.reports.report import printable, table
from containerhost.operator.selftest import rootimage
from containerhost.operator.selftest.guardian import cleaned_if_killed
from containerhost.operator.selftest.steps import NAME, Outcome, Row, SelfTest

FILE = "selftest.json"
VERSION = 1
LOCK = ".selftest"
ENGINES = ("lxd", "incus", "docker")
ENGINE = ("name", "version", "architectures", "kernel")  # reported attributes; the others identify the host
HEADINGS = ("step", "result", "seconds", "")


@click.command()
@click.option("--engine", "engine_name", metavar="NAME[=ENDPOINT]",
              help="lxd, incus or docker; the first of them that answers if not given.")
@click.option("--project", default="", help="Of LXD or Incus; the default one if not given.")
@click.option("--pool", default="default", show_default=True, help="Of LXD or Incus, for the container's root.")
@click.option("--gpu", "gpus", multiple=True, metavar="DEVICE", help="A free GPU, or a part of one; repeatable.")
@click.option("--vf", "functions", multiple=True, metavar="DEVICE", help="A free network function; repeatable.")
@click.option("--pair", is_flag=True, help="Then let two functions reach each other by RDMA, from two containers: the "
              "first two of --vf, or two of one card.")
@click.option("--dry-run", is_flag=True, help="Print what would be touched, and change nothing.")
@click.option("--output", default=FILE, show_default=True, metavar="FILE",
              type=click.Path(dir_okay=False, path_type=Path),
              help="Where to write the results, with the redacted `containerhost dump`.")
@click.option("--records", default=RECORDS, metavar="DIR", type=click.Path(file_okay=False, path_type=Path),
              help="The records of containers on Docker.")
@clioptions.as_json
@clioptions.owners
def selftest(engine_name: str | None, project: str, pool: str, gpus: tuple[str, ...], functions: tuple[str, ...],
             pair: bool, dry_run: bool, output: Path, records: Path, as_json: bool, owners_directory: Path | None
             ) -> None:
    """Attach free devices to test containers, detach them and require that they are clean. Needs root.

    Without --gpu and --vf, it uses a free GPU and a free virtual function, if there are any; named ones may be
    tainted. Devices in use are not touched. Status 1 if a step failed; `not here` marks steps that this host cannot
    perform."""
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(message)s")
    owners = clioptions.directory(Path("/"), owners_directory)
    gpus, functions = (tuple(name.lower() for name in names) for names in (gpus, functions))
    store, host = AllocationStore(owners), Host()
    settings = local.Settings("", project, owners, records)
    name, endpoint = _engine(engine_name, settings)
    settings = dataclasses.replace(settings, endpoint=endpoint)
    local.load(name, settings).require_room(pool)

    def chosen() -> tuple[tuple[str, ...], tuple[str, ...]]:
        return free(store, host, gpus, functions), free_pair(store, host, functions) if pair else ()

    if dry_run:
        device_ids, both = chosen()
        click.echo(_preview(name, tuple(dict.fromkeys((*device_ids, *both))), as_json))
        return
    consumers = [Consumer(rungroup.DRIVER, name, rungroup.supervisor(), str(uuid.uuid4())) for _ in range(2)]
    rows = [_examined(host, owners, (*gpus, *functions))]

    def test(report: Any = lambda row: None) -> SelfTest:
        return SelfTest(AllocationStore(owners), local.load(name, settings), pool, consumers, report)

    with (FileLock(owners / LOCK, 0).held(lambda reason: EngineBusy(f"another self-test runs on this host: {reason}")),
          cleaned_if_killed(lambda: test().clean_up())):
        if not as_json:
            _show(rows[0])
        own = test((lambda row: None) if as_json else _show)
        own.recover()
        device_ids, both = chosen()
        own.run(device_ids, both)
        rows += own.rows
    server = local.load(name, settings).engine.server()
    told = {"version": VERSION, "engine": {key: getattr(server, key) for key in ENGINE}, "devices": device_ids,
            "pair": both, "steps": [dataclasses.asdict(row) for row in rows]}
    if as_json:
        click.echo(json.dumps(told, indent=1))
    else:
        click.echo(table(HEADINGS, [(row.step, row.outcome, f"{row.seconds:.1f}", row.detail) for row in rows]))
    hide = dump.redaction()
    redacted = [dataclasses.asdict(row) | {"detail": hide("", row.detail)} for row in rows]  # tools print UUIDs
    captured = dump.capture(Path("/"), owners, store.records(), redacted=True)
    clioptions.write(output, json.dumps(told | {"steps": redacted, "host": captured}).encode())
    if not as_json:
        click.echo(f"written to {output}, to be sent with a report")
    if any(row.outcome is Outcome.FAILED for row in rows):
        raise SystemExit(1)


def free(store: AllocationStore, host: Host, gpus: Sequence[str], functions: Sequence[str]) -> tuple[str, ...]:
    """Return the ids of the free devices to use; without named ones, a GPU and a virtual function.

    :param gpus, functions: may be tainted, to be tested before further use
    :raises DeviceNotFound, NoPlacement: a named one is missing, of the wrong kind or not free, or there is no free
        one
    """
    inventory, records = HostView(host, untainted=(*gpus, *functions)).inventory, store.records()
    wanted = [(inventory.get(name), kind) for kind, named in (("GPU", gpus), ("network function", functions))
              for name in named]
    for device, kind in wanted:
        if (device.kind is Kind.NET) is (kind == "GPU"):
            raise NoPlacement(f"device {device.id} is not a {kind}")
        holder = [f"{records[device.id].consumer} has it"] if device.id in records else []
        if reasons := (*holder, *device.health, *(f"the host uses it: {use}" for use in device.host_use)):
            raise NoPlacement(f"device {device.id} is not free and healthy: {'; '.join(reasons)}")
    if not wanted:
        candidates = [each for each in freedevices.candidates(inventory, host, records)
                      if each.is_gpu or inventory.get(each.id).role is Role.VF]
        kinds = {each.is_gpu for each in candidates}
        if not kinds:
            raise NoPlacement("no GPU and no virtual function is free and healthy here: see `containerhost list`")
        return tuple(each.id for each in devicechoice.choose(candidates, True in kinds, False in kinds).devices)
    return tuple(dict.fromkeys(device.id for device, _ in wanted))


def free_pair(store: AllocationStore, host: Host, functions: Sequence[str]) -> tuple[str, ...]:
    """Return two free functions: the first two named, or two virtual ones of one card with RDMA.

    :raises DeviceNotFound, NoPlacement: one is missing or not free, or there are fewer than two
    """
    named = free(store, host, (), functions) if functions else ()
    if len(named) > 1:
        return named[:2]
    inventory, cards = HostView(host).inventory, collections.defaultdict[str | None, list[str]](list)
    for each in freedevices.candidates(inventory, host, store.records()):
        device = inventory.get(each.id)
        if device.role is Role.VF and device.rdma:
            cards[device.parent].append(device.id)
    found = next((ids for ids in cards.values() if len(ids) > 1), None)
    if found is None:
        raise NoPlacement("no card has two virtual functions with RDMA that are free and healthy: name two with --vf")
    return tuple(found[:2])


def _engine(wanted: str | None, settings: local.Settings) -> tuple[str, str]:
    """Return the name and the endpoint of the first engine that responds.

    :raises EngineUnavailable, SpecError: none responds
    """
    reasons = []
    for text in (wanted,) if wanted else ENGINES:
        name, _, endpoint = text.partition("=")
        try:
            local.load(name, dataclasses.replace(settings, endpoint=endpoint)).engine.server()
            return name, endpoint
        except (EngineUnavailable, SpecError) as error:
            reasons.append(str(error))
    raise EngineUnavailable("\n  ".join(("no engine answers:", *reasons)))


def _examined(host: Host, owners: Path, untainted: Sequence[str]) -> Row:
    """Return the row of `containerhost doctor`. The taint of a tested device is not a fault."""
    began = time.monotonic()
    found = doctor.findings(doctor.collect(host, owners, untainted))
    wrong = [finding for finding in found if finding.severity is Severity.WRONG]
    return Row("doctor", Outcome.FAILED if wrong else Outcome.PASSED, "; ".join(map(str, wrong)) or "nothing is wrong",
               round(time.monotonic() - began, 1))


def _preview(engine: str, device_ids: Sequence[str], as_json: bool) -> str:
    found = {"engine": engine, "image": NAME, "container": NAME, "devices": device_ids, "mounts": [
        mount.source for mount in rootimage.mounts()]}
    if as_json:
        return json.dumps(found, indent=1)
    return (f"would make the image and the container {NAME} on {engine}, which sees "
            f"{' '.join(found['mounts'])} of this host read-only; give it, take from it, reset and free "
            f"{', '.join(device_ids)}; then remove both. Nothing was changed")


def _show(row: Row) -> None:
    click.echo(printable(f"{row.outcome.ljust(8)}  {row.step}"))
