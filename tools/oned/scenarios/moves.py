# SPDX-License-Identifier: Apache-2.0
"""Move a VM that has devices and writes files; check its files, and the devices of both nodes."""

import json
import time
from collections.abc import Collection
from typing import Any

from tests.functional_one import writer
from tools.oned.machine import Machine, MachineFailed
from tools.oned.scenarios import for_each_driver
from tools.oned.scenarios.devices import HOT_FUNCTION, TOLD_TIMEOUT, offered
from tools.oned.scenarios.life import other
from tools.oned.stage import GPU, LXDONE, NETWORK, Driver, Stage, require

DEVICES = 6  # GPUs and functions of a node
WAYS = ("--poff", "--poff", "--poff-hard")
COMMAND = f'DOCKER_COMMAND="{writer.FIRST_PROGRAM}"\n'


@for_each_driver
def moved_with_devices_while_it_writes(stage: Stage, driver: Driver) -> str:
    first, second = stage.cloud.nodes
    for node in first, second:
        host = f"{node.name}{driver.suffix}"
        stage.await_that(lambda host=host: len(offered(stage, host)) == DEVICES, f"{host} offers every device",
                         TOLD_TIMEOUT)
    empty = {first: things(stage, first)}
    vm, = stage.vms_on(driver, first, NETWORK + GPU + HOT_FUNCTION + ("" if driver is LXDONE else COMMAND))
    # What the VM has on the first node it cannot get on the second one.
    neighbour, = stage.vms_on(driver, second, requested(stage.gpus(vm)))
    require_devices(stage, vm)
    stage.inside(vm, writer.BY_INIT if driver is LXDONE else writer.INSTALL)
    require_refused(stage, vm)
    stops = []
    for way in WAYS:
        here, there, had = stage.node(vm), stage.of_host(other(stage, vm)), set(stage.gpus(vm))
        empty[there] = things(stage, there)
        stops.append(move(stage, vm, way))
        require_devices(stage, vm)
        require(not had & set(stage.gpus(vm)), f"it has {stage.gpus(vm)} and had {had} on the node that it left")
        left = things(stage, here) - empty[here]
        require(not left, f"it left {sorted(left)}")
        require(not held(here, vm), f"{here.name} has records of {held(here, vm)}")
        heir, = stage.vms_on(driver, here, requested(had))
        require_devices(stage, heir)
        stage.end(heir)
    written = len(writer.checked(stage.inside(vm, writer.READ)))
    stage.end(vm, neighbour)
    return f"{' and '.join(WAYS[1:])}: off for {', '.join(f'{stop:.1f}' for stop in stops)} s; {written} files, none " \
           "lost; others got the devices that it left"


def things(stage: Stage, node: Machine) -> set[str]:
    """Return what VMs can leave behind on a node, but for loop devices: the kernel has those of both nodes."""
    return {thing for thing in stage.things_on(node) if not thing.startswith(f"{node.name}: loop device")}


def requested(addresses: Collection[str]) -> str:
    """Return the part of a template that asks for these PCI devices."""
    return "".join(f'PCI=[SHORT_ADDRESS="{address.split(":", 1)[1]}"]\n' for address in sorted(addresses))


def require_refused(stage: Stage, vm: str) -> None:
    """Check that oned itself refuses to move a VM with PCI devices that is not powered off."""
    for words in ((), ("--live",)):
        try:
            stage.one("onevm", "migrate", vm, other(stage, vm), *words)
        except MachineFailed as error:
            require("poweroff" in str(error), str(error))
        else:
            raise AssertionError(f"migrate {' '.join(words)} was taken")


def move(stage: Stage, vm: str, way: str) -> float:
    """Move a VM while it writes.

    :returns: the longest time without a new file, in seconds
    """
    with writer.watched(stage.node(vm).there(*stage.entry(vm, writer.WATCH))) as notes:
        stage.await_that(lambda: len(notes()) > 20, "it writes")
        stage.migrate(vm, other(stage, vm), way)
        seen = notes()
    moved = time.time()
    stage.await_that(lambda: writer.notes(stage.inside(vm, "tail -n 1 /notes"))[-1].time > moved, "it writes again")
    return writer.longest_pause(writer.checked(stage.inside(vm, writer.READ), seen), max(seen).number)


def require_devices(stage: Stage, vm: str) -> None:
    """Check that a container has the nodes of its VM's devices and of no others, and an interface of a function."""
    node, given = stage.node(vm), set(stage.gpus(vm))
    require(held(node, vm) == given, f"{node.name} has records of {held(node, vm)} for it, oned has {given}")
    # busybox fails at the directory .lxd-mounts, which only the host may read.
    nodes = set(stage.inside(vm, "find /dev -type c || true").split())
    for device in devices(node):
        own = {each["path"] for each in device["nodes"] if each["use"] == "own"}
        require(own <= nodes if device["id"] in given else not own & nodes,
                f"it has {sorted(own & nodes)} of {device['id']}, oned gave it {given}")
    interfaces = stage.inside(vm, "ls /sys/class/net").split()
    require(any(name.startswith("ib") for name in interfaces), f"its interfaces are {interfaces}")


def held(node: Machine, vm: str) -> set[str]:
    """Return the devices of which the node's records say that a VM has them."""
    return {device["id"] for device in devices(node) if (device["owner"] or {}).get("container") == f"one-{vm}"}


def devices(node: Machine) -> list[dict[str, Any]]:
    """Return the devices of a node, each with its nodes and its allocation."""
    return list(json.loads(node.run("containerhost", "list", "--json")))
