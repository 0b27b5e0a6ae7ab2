# SPDX-License-Identifier: Apache-2.0
"""Provide the commands of ``containerhost`` that give devices to programs outside any cloud."""

import json
import logging
import pwd
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import click

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.store import DIRECTORY, AllocationStore
from containerhost.devices.model import Device
from containerhost.engines import corebinding, local
from containerhost.engines.contract import Containers
from containerhost.engines.docker.recordfiles import DIRECTORY as RECORDS
from containerhost.errors import EngineUnavailable, SpecError
from containerhost.inventory.scan import HostView, scan
from containerhost.linux.sysfs import Host
from containerhost.operator import clioptions
from containerhost.operator.reports.report import table
from containerhost.operator.runtimes import cdi as specifications
from containerhost.operator.runtimes.run import Runner, Wanted
from containerhost.privileged import Privileged
from hpcplan.affinity import Affinity

Answer = TypeVar("Answer")


@click.command()
@clioptions.as_json
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), is_flag=False,
              flag_value=specifications.FILE, metavar="[FILE]",
              help=f"Write the specification, if it changed; {specifications.FILE} if no FILE is given. Needs root.")
@clioptions.root
def cdi(as_json: bool, output: Path | None, root: Path) -> None:
    """Show the names of this host's devices for container engines (Container Device Interface).

    With --output, write the specification that they read. A name does not allocate its device; use `run` for that."""
    found = specifications.specification(scan(Host(root)).devices)
    if output:
        try:
            click.echo(f"{output}: {specifications.write(output, found)}", err=as_json)
        except OSError as error:
            raise click.ClickException(f"{output} cannot be written: {error.strerror}") from error
    if as_json:
        click.echo(json.dumps(found, indent=1))
    elif not output:
        rows = [(f"{specifications.KIND}={each['name']}",
                 " ".join(node["path"].removeprefix("/dev/") for node in each["containerEdits"]["deviceNodes"]))
                for each in (found or {}).get("devices", ())]
        click.echo(table(("name", "nodes"), rows) if rows else "no device of this host has nodes for containers")


def _user(_: click.Context, __: click.Parameter, name: str | None) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name) if name else None
    except KeyError as error:
        raise click.BadParameter(f"this host has no user {name}") from error


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--gpu", "gpus", type=click.IntRange(0), default=0, metavar="NUMBER", help="Whole GPUs.")
@click.option("--vf", "functions", type=click.IntRange(0), default=0, metavar="NUMBER", help="Network functions.")
@click.option("--slice", "slices", multiple=True, metavar="PROFILE",
              help="A slice of a GPU, such as 1g.10gb; repeatable.")
@click.option("--device", "devices", multiple=True, metavar="DEVICE",
              help="A device by its id in `containerhost list`; repeatable.")
@click.option("--cores", type=click.IntRange(0), default=0, metavar="NUMBER", help="Cores that no other has.")
@click.option("--affinity", type=click.Choice([each.value for each in Affinity]), default=Affinity.CPUMEM.value,
              show_default=True, help="How these cores are chosen.")
@click.option("--mpi", "ranks", type=click.IntRange(1), metavar="NUMBER",
              help="Start COMMAND so many times as the ranks of an MPI program, by the host's mpirun. Each rank has "
                   "what the options above ask for.")
@click.option("--user", callback=_user, metavar="NAME", help="Run COMMAND as this user, not as root.")
@clioptions.owners
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(gpus: int, functions: int, slices: tuple[str, ...], devices: tuple[str, ...], cores: int, affinity: str,
        ranks: int | None, user: pwd.struct_passwd | None, owners_directory: Path | None, command: tuple[str, ...]
        ) -> None:
    """Run COMMAND with free devices of this host, near each other, until it ends. Needs root.

    The status is COMMAND's. `podman run`, `apptainer exec` and `udocker run` get them as arguments, any other
    command as variables (CONTAINERHOST_DEVICES). Processes that COMMAND leaves running are ended."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    store = AllocationStore(clioptions.directory(Path("/"), owners_directory))
    allocator = DeviceAllocator(store, HostView, Privileged(), configured)
    wanted = Wanted(gpus, functions, slices, devices, cores, Affinity(affinity), ranks or 0, user)
    raise SystemExit(Runner(store, allocator, Host(), _cores).run(command, wanted))


def configured(devices: Iterable[Device]) -> Mapping[str, str]:
    """Return the devices that containers of this host's engines name, with a container of each."""
    known = tuple(devices)
    return dict(pair for held in _asked(lambda engine: engine.held(known)) for pair in held.items())


def _cores() -> frozenset[int]:
    """Return the cores that containers of this host's engines use exclusively."""
    return corebinding.held_by(state for states in _asked(lambda engine: engine.containers()) for state in states)


def _asked(question: Callable[[Containers], Answer]) -> Iterator[Answer]:
    """Yield the answers of all running engines of this host."""
    for name in local.names():
        try:
            yield question(local.load(name, local.Settings("", "", DIRECTORY, Path(RECORDS))).engine)
        except (EngineUnavailable, SpecError) as error:
            logging.getLogger(__name__).info("%s does not answer: %s", name, error)
