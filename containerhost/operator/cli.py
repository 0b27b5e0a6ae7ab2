# SPDX-License-Identifier: Apache-2.0
"""Run the command ``containerhost``, which shows a host as the drivers see it. Only changes need privileges."""

import dataclasses
import enum
import json
import logging
import os
import re
import warnings
from pathlib import Path
from typing import Any

import click
from stevedore import DriverManager, ExtensionManager, NamedExtensionManager
from stevedore.exception import NoMatches

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.store import Allocation, AllocationStore
from containerhost.devices import rdmaports
from containerhost.devices.findings import Severity
from containerhost.devices.model import Device
from containerhost.errors import AllocationsUnreadable, ContainerHostError
from containerhost.inventory import devicechoice, freedevices, pci_topology, topology
from containerhost.inventory.scan import HostView, scan
from containerhost.linux.sysfs import Host
from containerhost.operator import clioptions, dump, taintcli
from containerhost.operator import doctor as diagnosis
from containerhost.operator.doctor import gpudirect
from containerhost.operator.drawing import text
from containerhost.operator.drawing.hostreader import read_map
from containerhost.operator.drawing.png import from_svg
from containerhost.operator.drawing.svg import draw
from containerhost.operator.elasticcli import elastic
from containerhost.operator.provenancecli import provenance
from containerhost.operator.reports import allocations, choices, rdmareport, report
from containerhost.operator.runtimes.cli import cdi, run
from containerhost.operator.selftest.cli import selftest
from containerhost.operator.slurm.cli import slurm
from containerhost.operator.vfs.cli import vfs
from containerhost.privileged import Privileged
from hpcplan import plan, planformats
from hpcplan.errors import PlanError
from hpcplan.plan import Fabric, Nodes, Policy, Profile

EXPORTER_ADDRESS = "127.0.0.1:9869"
CONFIG_GROUP = "containerhost.config"
COMMAND_GROUP = "containerhost.commands"


def _one_of(kind: type[enum.StrEnum]) -> click.Choice:
    return click.Choice([word.value for word in kind])  # click would show the Python names of an enumeration


class Commands(click.Group):
    """Provide the command's own subcommands and those of vendors.

    Errors of this project, and missing permissions, are shown as a message with status 1, not as a traceback."""

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted({*super().list_commands(context), *vendor_commands()})

    def get_command(self, context: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(context, cmd_name) or vendor_commands().get(cmd_name)

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except (ContainerHostError, PlanError) as error:
            denied = isinstance(error.__cause__, PermissionError) and os.geteuid() != 0
            raise click.ClickException(f"{error}: {self._needs_root(context)}" if denied else str(error)) from error
        except PermissionError as error:
            raise click.ClickException(f"{error.strerror}: {self._needs_root(context)}") from error

    @staticmethod
    def _needs_root(context: click.Context) -> str:
        return f"{context.info_name} {context.invoked_subcommand} needs root"


def vendor_commands() -> dict[str, click.Command]:
    """Return the commands that vendors register as entry points of the group ``containerhost.commands``, by name."""
    return {extension.name: extension.plugin for extension in ExtensionManager(COMMAND_GROUP)}


@click.group(cls=Commands)
@click.version_option(package_name="nova-lxd-ext")
def main() -> None:
    """Show one host's devices, topology and health, as the drivers see them."""


for _command in taintcli.COMMANDS:
    main.add_command(_command)


class Clouds(click.Group):
    """Provide the commands that drivers register as entry points of the group ``containerhost.config``, by cloud."""

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted(points())

    def get_command(self, context: click.Context, cmd_name: str) -> click.Command | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # warnings of a cloud's libraries are for their developers
                command: click.Command = DriverManager(CONFIG_GROUP, cmd_name).driver
            return command
        except NoMatches:
            return None
        except ModuleNotFoundError as error:
            extras = ",".join(points()[cmd_name].extras)
            return _not_installed(cmd_name, f"{error.name} is missing: install nova-lxd-ext[{extras}]")


def points() -> dict[str, Any]:
    """Return the entry points of the clouds' commands by name, without loading them."""
    manager = NamedExtensionManager(CONFIG_GROUP, names=[])
    return {point.name: point for point in manager.list_entry_points()}


def _not_installed(name: str, reason: str) -> click.Command:
    """Return a command that fails with the reason, whatever its arguments."""
    def refuse() -> None:
        raise click.ClickException(reason)

    return click.Command(name, callback=refuse, short_help=f"Not installed: {reason}", add_help_option=False,
                         context_settings={"ignore_unknown_options": True, "allow_extra_args": True})


@main.group(cls=Clouds)
def config() -> None:
    """Print a cloud's configuration for the devices of this host."""


@main.command("list")
@click.option("--short", is_flag=True, help="Only what each device is, its health, state and holder.")
@clioptions.as_json
@clioptions.root
@clioptions.owners
def list_devices(short: bool, as_json: bool, root: Path, owners_directory: Path | None) -> None:
    """Show every GPU, GPU slice and network function, its health, its allocation, its owner and since when.

    For a blocked one, show the reason and the remedy."""
    inventory = scan(Host(root))
    records = _records(root, owners_directory)
    if as_json:
        # One device a line: as readable as indented JSON, and ten times faster on a large host.
        rows = (json.dumps(_row(device, records)) for device in inventory.devices)
        click.echo("[" + ",\n ".join(rows) + "]")
    else:
        click.echo(report.devices(inventory, records, short=short))


@main.command("topology")
@click.option("--text", "as_text", is_flag=True, help="Print a tree: nodes, switches, cards, functions, their holders.")
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Draw it as SVG.")
@click.option("--png", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Draw it as PNG; needs the extra `picture`.")
@clioptions.as_json
@clioptions.root
@clioptions.owners
def show_topology(as_text: bool, svg: Path | None, png: Path | None, as_json: bool, root: Path,
                  owners_directory: Path | None) -> None:
    """Show processors, memory and NUMA nodes, the devices near them, and connections of GPUs and network cards."""
    if as_json and (as_text or svg or png):
        raise click.UsageError("use only one of --json, --text, --svg, --png")
    host = Host(root)
    if as_text or svg or png:
        drawn = read_map(host, _records(root, owners_directory) or {})
        if as_text:
            click.echo(text.write(drawn))
        for path, convert in ((svg, bytes), (png, from_svg)):
            if path:
                clioptions.write(path, convert(draw(drawn)))
        return
    found, inventory = topology.read(host), scan(host)
    connections = pci_topology.connections(inventory, host)
    if as_json:
        told = dataclasses.asdict(found) | {"pci_topology": [dataclasses.asdict(each) for each in connections]}
        click.echo(json.dumps(told, default=sorted, indent=1))
    else:
        click.echo(report.topology(found, inventory))
        between = report.pci_topology(inventory, connections)
        click.echo(f"\n{between}" if between else "", nl=bool(between))


@main.command("rdma")
@clioptions.as_json
@clioptions.root
@clioptions.owners
def show_rdma(as_json: bool, root: Path, owners_directory: Path | None) -> None:
    """Show every RDMA function: ports, partition keys, GIDs, nodes, the nearest GPUs and its holder."""
    host = Host(root)
    inventory = scan(host)
    rows = rdmareport.rows(inventory, host, _records(root, owners_directory) or {})
    mode, manager = rdmaports.namespace_mode(host), rdmareport.has_manager(inventory.devices)
    if as_json:
        click.echo(json.dumps({"network_namespaces": mode, "rdma_cm": manager, "devices": rows}, indent=1))
    else:
        click.echo(report.rdma(rows, mode, manager))


@main.command()
@clioptions.as_json
@clioptions.root
@clioptions.owners
def doctor(as_json: bool, root: Path, owners_directory: Path | None) -> None:
    """Report problems of this host and their remedies; status 1 if there are any. Notes leave it 0."""
    seen = diagnosis.collect(Host(root), clioptions.directory(root, owners_directory))
    found = diagnosis.findings(seen)
    bad = [finding for finding in found if finding.severity is Severity.WRONG]
    if as_json:
        click.echo(json.dumps({"findings": [dataclasses.asdict(finding) for finding in found], "gpudirect": [
            dataclasses.asdict(pair) for pair in gpudirect.pairs(seen)]}, indent=1))
    else:
        for finding in (*bad, *(other for other in found if other not in bad)):
            click.echo(report.printable(f"{finding.severity.ljust(5)}  {finding}"))
        if not bad:
            click.echo("nothing is wrong" + (f"; {len(found)} notes" if found else ""))
    if bad:
        raise SystemExit(1)


@main.command("dump")
@click.option("--redact", is_flag=True, help="Replace serial numbers, addresses, UUIDs and the root device.")
@clioptions.root
@clioptions.owners
def dump_host(redact: bool, root: Path, owners_directory: Path | None) -> None:
    """Print this host as one JSON document for a report; commands read it with --root FILE.

    It has the files that they read from /sys, /proc, /dev and the kernel's log, and the allocation records."""
    owners = clioptions.directory(root, owners_directory)
    click.echo(json.dumps(dump.capture(root, owners, _records(root, owners_directory) or {}, redact), indent=0))


@main.command()
@click.option("--listen", default=EXPORTER_ADDRESS, show_default=True, metavar="ADDRESS:PORT",
              help="Where to serve. All who can connect read names of containers and devices, without a password.")
@click.option("--job-mapping", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Keep the files of dcgm-exporter's --hpc-job-mapping-dir here.")
@clioptions.root
@clioptions.owners
def exporter(listen: str, job_mapping: Path | None, root: Path, owners_directory: Path | None) -> None:
    """Serve metrics of devices, allocations and usage to Prometheus, and the host's topology to Horizon."""
    try:
        from containerhost.operator.exporter import server, topologypage  # noqa: PLC0415  (of the extra ``exporter``)
    except ModuleNotFoundError as error:
        raise click.ClickException(f"the exporter needs {error.name}: install nova-lxd-ext[exporter]") from error

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    store = AllocationStore(clioptions.directory(root, owners_directory))
    host = Host(root)
    thread = server.serve(listen, server.HostCollector(host, store, job_mapping),
                          {topologypage.PATH: topologypage.TopologyPage(host, store)})
    click.echo(f"serving metrics at http://{listen}/metrics, the host's topology at http://{listen}{topologypage.PATH}")
    thread.join()


@main.command()
@click.argument("device")
@clioptions.owners
def unblock(device: str, owners_directory: Path | None) -> None:
    """Free DEVICE, which was blocked because it could not be cleaned, after you have cleaned it by hand."""
    store = AllocationStore(clioptions.directory(Path("/"), owners_directory))
    with store.working([device.lower()]):
        store.free(device.lower())


@main.command()
@click.argument("device")
@clioptions.as_json
@clioptions.owners
def scrub(device: str, as_json: bool, owners_directory: Path | None) -> None:
    """Clean DEVICE (a PCI address) as if its container had ended, and free it. Needs root.

    Use it on a device that is blocked because it could not be cleaned, or free and sick. A device that an elastic
    container runs without stays allocated to it. A device that a container has is refused."""
    store = AllocationStore(clioptions.directory(Path("/"), owners_directory))
    before = store.records().get(device.lower())
    done = DeviceAllocator(store, HostView, Privileged()).repair.clean(device)
    if as_json:
        click.echo(json.dumps({"device": device, "done": done, "was_blocked": before.blocked if before else None}))
    else:
        after = store.records().get(device.lower())
        click.echo(f"{device} is clean and {f'stays allocated to {after.consumer}' if after else 'free'}: "
                   f"{', '.join(done)}")


main.add_command(provenance)
main.add_command(vfs)
main.add_command(elastic)
main.add_command(cdi)
main.add_command(run)
main.add_command(slurm)
main.add_command(selftest)


@main.command("plan")
@click.option("--tasks", type=int, required=True, help="MPI processes of the job.")
@click.option("--profile", type=_one_of(Profile), required=True, help="What limits the job's speed.")
@click.option("--nodes", type=int, required=True, help="Most hosts that the job may use.")
@click.option("--cores", type=int, required=True, help="Cores of a host that containers may have.")
@click.option("--sockets", type=int, default=2, show_default=True, help="Sockets of a host.")
@click.option("--policy", type=_one_of(Policy), help="Few containers, or one for each task.")
@click.option("--containers", type=int, help="Number of containers, in place of a policy.")
@click.option("--fabric", type=_one_of(Fabric), help="Network of the hosts; all if not given.")
@click.option("--ranks-per-core", type=int, default=1, show_default=True, help="More than 1 over-subscribes cores.")
@click.option("--name", default="job", show_default=True, help="Name of the job.")
@click.option("--output", type=click.Choice([*planformats.FORMATS]), default="text", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan_job(tasks: int, profile: str, nodes: int, cores: int, sockets: int, policy: str | None, containers: int | None,
             fabric: str | None, ranks_per_core: int, name: str, output: str, as_json: bool) -> None:
    """Plan a job: the number of containers, their resources, affinity and network, with the reasons."""
    found = plan.plan(tasks, Profile(profile), Nodes(nodes, cores, sockets), Policy(policy) if policy else None,
                      containers=containers, fabric=Fabric(fabric) if fabric else None, ranks_per_core=ranks_per_core)
    click.echo(planformats.FORMATS["json" if as_json else output](found, plan.require_name(name)).rstrip("\n"))


@main.command("choose")
@click.option("--gpus", type=int, default=0, show_default=True)
@click.option("--functions", type=int, default=0, show_default=True, help="Network functions.")
@click.option("--gpu", metavar="VENDOR:PRODUCT", help="GPUs of these PCI ids only.")
@click.option("--function", metavar="VENDOR:PRODUCT", help="Network functions of these PCI ids only.")
@clioptions.as_json
@clioptions.root
@clioptions.owners
def choose_devices(gpus: int, functions: int, gpu: str | None, function: str | None, as_json: bool, root: Path,
                   owners_directory: Path | None) -> None:
    """Choose free GPUs and network functions near each other, keeping other pairs intact, and explain the choice."""
    host = Host(root)
    inventory, records = scan(host), AllocationStore(clioptions.directory(root, owners_directory)).records()
    free = freedevices.candidates(inventory, host, records, _pci_ids(gpu), _pci_ids(function))
    links = choices.links(each.id for each in free if each.is_gpu) if host.live and gpus > 1 else {}
    found = choices.rows(devicechoice.choose(free, gpus, functions, links), inventory)
    click.echo(json.dumps(found, indent=1) if as_json else choices.text(found))


def _pci_ids(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    if not re.fullmatch(r"[0-9a-fA-F]{4}:[0-9a-fA-F]{4}", text):
        raise click.BadParameter(f"{text!r} is not a VENDOR:PRODUCT such as 10de:2330")
    vendor, _, product = text.lower().partition(":")
    return vendor, product


def _records(root: Path, given: Path | None) -> dict[str, Allocation] | None:
    """Return the allocations, or None if they cannot be read, so that devices can still be listed."""
    try:
        return AllocationStore(clioptions.directory(root, given)).records()
    except AllocationsUnreadable as error:
        click.echo(f"owners are not shown: {error}", err=True)
        return None


def _row(device: Device, records: dict[str, Allocation] | None) -> dict[str, Any]:
    return device.to_dict() | allocations.row(device.id, records)
