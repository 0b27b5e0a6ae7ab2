# SPDX-License-Identifier: Apache-2.0
"""Writes an emulated host as plain directories ``{sys,proc,dev}``: for unit tests and benchmarks, without privileges.

    tree.write(description.load("small"), tmp_path)

Nodes in dev/ are empty files there and attributes such as ``sriov_numvfs`` do nothing; for a host that reacts, run
under ``tools/fakehost``.
"""

import pathlib
from collections.abc import Iterator, Sequence

from tests.fakehost import gpus, nets, numa, pci
from tests.fakehost.description import HostDescription
from tests.fakehost.entries import Directory, Entry, File, Writer
from tests.fakehost.functions import Function, GpuFunction, NetFunction, functions

_CLASSES = ("drm", "infiniband", "infiniband_mad", "infiniband_verbs", "net")


def write(host: HostDescription, root: str | pathlib.Path) -> None:
    """Write ``root/{sys,proc,dev}``; the directory must not hold such a tree yet."""
    present = functions(host)
    writer = Writer(root)
    writer.write(standalone_entries(host, present))
    writer.write(fixed_entries(host, present))
    for function in present:
        writer.write(function_entries(function))
        if isinstance(function, NetFunction):
            writer.write(nets.interface_entries(function))


def function_entries(function: Function) -> Iterator[Entry]:
    """Yield all that exists because of one function, except its network interface."""
    yield from pci.function_entries(function)
    yield from (
        gpus.function_entries(function) if isinstance(function, GpuFunction) else nets.function_entries(function)
    )


def fixed_entries(host: HostDescription, present: Sequence[Function]) -> Iterator[Entry]:
    """Yield all that stays as it is whatever happens to single functions: buses, drivers, classes, shared nodes."""
    yield from pci.bus_entries()
    drivers = {gpu.driver: gpu.driver_version for gpu in host.gpus}
    for card in host.cards:
        drivers |= {card.driver: "", card.vf_driver: ""}
    for driver, version in drivers.items():
        yield from pci.driver_entries(driver, version)
    yield from (Directory(f"sys/class/{name}") for name in _CLASSES)
    yield from gpus.shared_entries(gpus_of(present))
    yield from nets.shared_entries(nets_of(present))
    yield from numa.node_entries(host.nodes)


def standalone_entries(host: HostDescription, present: Sequence[Function]) -> Iterator[Entry]:
    """Yield what a tree needs only because no real machine is under it."""
    yield from numa.cpu_entries(host.nodes)
    yield from numa.proc_entries(host)
    real = "Character devices:\n  1 mem\n 10 misc\n\nBlock devices:\n254 virtblk\n"
    yield File("proc/devices", devices_text(real, present))
    yield File("proc/misc", misc_text("229 fuse\n", present))


def devices_text(real: str, present: Sequence[Function]) -> str:
    """/proc/devices with the drivers of the emulated functions added to the real ones."""
    majors = gpus.majors(gpus_of(present)) | nets.majors(nets_of(present))
    lines = real.splitlines(keepends=True)
    lines[1:1] = [f"{major:>3} {name}\n" for name, major in majors.items()]
    return "".join(lines)


def misc_text(real: str, present: Sequence[Function]) -> str:
    """/proc/misc with rdma_cm added where there are RDMA functions."""
    rdma = any(function.card.kind.rdma for function in nets_of(present))
    return f"{nets.RDMA_CM_MINOR:>3} rdma_cm\n{real}" if rdma else real


def gpus_of(present: Sequence[Function]) -> list[GpuFunction]:
    return [function for function in present if isinstance(function, GpuFunction)]


def nets_of(present: Sequence[Function]) -> list[NetFunction]:
    return [function for function in present if isinstance(function, NetFunction)]
