#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""OpenNebula's driver for Docker: what its start costs, a deployment, and a device for a running VM.

    sudo .venv/bin/python bench/onedock.py [--runs N] [--json]

Start: from the call of the installed script ``reset`` to the first connection to Docker, of which this program plays
the part; aim <= 0.25 s for the median. Deployment: a VM with a GPU and a network function by the script ``deploy``,
against `docker create` with the GPU's and the function's nodes, `docker start` and `ip link set` for its interface by
hand, in turns; aim <= 1.3 times and the start. What the same costs as bare requests of Docker's API is told beside it.
Hot: a GPU that appears in a running container, once it is the VM's; aim <= 0.15 s; the whole action is told beside it.
Medians. The driver is installed, by itself. What monitoring costs is in bench/host.py.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from typing import Any

from emulated import enter, installed, options
from opennebula import AIM_RATIO, AIM_START, is_near, starts, timed
from raw import RawDocker

from containerhost.allocation.refusals import Request
from containerhost.devices.model import Device, Kind, Role
from containerhost.inventory.scan import scan
from onedock import backend, conf
from tests.functional_docker.dockerd import Daemon
from tests.functional_one.vms import Machine
from tests.functional_onedock.node import DockerNode

AIM_ATTACH = 0.15
IMAGE = "polite"


def main() -> int:
    chosen = options(__doc__, runs=15)
    commands = installed("onedock")
    enter()
    with DockerNode(Daemon(commands=commands), commands) as node:
        found = {"start": starts(node, commands, chosen.runs, "unix://")}
        node.configure()
        found |= {"deploy": deploys(node, chosen.runs), "attach": attachments(node, chosen.runs)}
    print(json.dumps(found) if chosen.json else told(found, chosen))
    return int(not reached(found))


# A deployment.


def deploys(node: DockerNode, runs: int) -> dict[str, float]:
    gpu, function = parts()
    machine = Machine(devices=(gpu, function))
    node.give_disk(machine)
    raw = RawDocker(node.docker.daemon.endpoint)
    times: dict[str, list[float]] = {"raw_s": [], "hand_s": [], "driver_s": []}
    for turn in range(runs + 1):
        for name, deploy, end in (("hand_s", lambda: by_hand(node, gpu, function), lambda: end_raw(raw, function)),
                                  ("driver_s", lambda: act(node, "deploy", machine, lcm=2),
                                   lambda: act(node, "cancel", machine, lcm=23)),
                                  ("raw_s", lambda: by_requests(raw, gpu, function), lambda: end_raw(raw, function))):
            needed = timed(deploy)
            end()
            if turn:  # the first of each warms up
                times[name].append(needed)
    found = {name: statistics.median(values) for name, values in times.items()}
    return found | {"ratio": found["driver_s"] / found["hand_s"], "raw_ratio": found["driver_s"] / found["raw_s"]}


def parts() -> tuple[Device, Device]:
    devices = scan().devices
    return (next(device for device in devices if device.kind is Kind.GPU),
            next(device for device in devices if device.role is Role.VF))


def act(node: DockerNode, action: str, machine: Machine, *arguments: str, lcm: int = 3) -> None:
    result = node.act(action, machine, *arguments, lcm=lcm)
    if result.status:
        raise RuntimeError(result)


def by_hand(node: DockerNode, gpu: Device, function: Device) -> None:
    docker = ["docker", "--host", node.docker.daemon.endpoint]
    nodes = [word for device in (gpu, function) for path in device.nodes for word in ("--device", path.path)]
    limits = ["--network", "none", "--cap-add", "IPC_LOCK", "--cpus", "1", "--memory", "128m"]
    subprocess.run([*docker, "create", "--name", "raw", *limits, *nodes, IMAGE], check=True, capture_output=True)
    subprocess.run([*docker, "start", "raw"], check=True, capture_output=True)
    done = subprocess.run([*docker, "inspect", "--format", "{{.State.Pid}}", "raw"], check=True, capture_output=True,
                          text=True)
    lend(function, done.stdout.strip())


def lend(function: Device, pid: str) -> None:
    subprocess.run(["ip", "link", "set", function.netdev or "", "netns", pid], check=True)
    subprocess.run(["nsenter", "--target", pid, "--net", "ip", "link", "set", function.netdev or "", "name", "ib0"],
                   check=True)


def by_requests(raw: RawDocker, gpu: Device, function: Device) -> None:
    nodes = [{"PathOnHost": node.path, "PathInContainer": node.path, "CgroupPermissions": "rwm"}
             for device in (gpu, function) for node in device.nodes]
    raw.call("POST", "/containers/create?name=raw", {"Image": IMAGE, "HostConfig": {
        "NetworkMode": "none", "CapAdd": ["IPC_LOCK"], "NanoCpus": 10**9, "Memory": 128 << 20, "Devices": nodes}})
    raw.call("POST", "/containers/raw/start")
    lend(function, str(raw.call("GET", "/containers/raw/json")["State"]["Pid"]))


def end_raw(raw: RawDocker, function: Device) -> None:
    """And its interface comes back, which the kernel does by itself only for hardware."""
    pid = str(raw.call("GET", "/containers/raw/json")["State"]["Pid"])
    subprocess.run(["nsenter", "--target", pid, "--net", "ip", "link", "set", "ib0", "name", function.netdev or "",
                    "netns", str(os.getpid())], check=True)
    raw.call("DELETE", "/containers/raw?force=1&v=1")


# A device for a running VM.


def attachments(node: DockerNode, runs: int) -> dict[str, float]:
    engine_s, action_s = [], []
    machine, gpu = Machine(), parts()[0]
    node.give_disk(machine)
    act(node, "deploy", machine, lcm=2)
    equipped, words = machine.changed(devices=(gpu,), attach="pci"), (machine.mac(9), "-", "-", "dummy", "one-1-9")
    vmm = backend.vmm(conf.load(node._conf))
    for _ in range(runs):
        action_s.append(timed(lambda: act(node, "attach_nic", equipped, *words)))
        grant = vmm._allocator.grants([Request(gpu.id)], vmm._consumer(machine.id))[0]
        vmm._engine.detach(machine.name, grant, ())
        engine_s.append(timed(lambda grant=grant: vmm._engine.attach(machine.name, grant)))
        act(node, "detach_nic", equipped, words[0])
    act(node, "cancel", machine, lcm=23)
    return {"engine_s": statistics.median(engine_s), "action_s": statistics.median(action_s)}


# The answer.


def reached(found: dict[str, Any]) -> bool:
    return (found["start"]["median_s"] <= AIM_START and is_near(found["deploy"]["driver_s"], found["deploy"]["hand_s"])
            and found["attach"]["engine_s"] <= AIM_ATTACH)


def told(found: dict[str, Any], chosen: argparse.Namespace) -> str:
    start, deploy, attach = found["start"], found["deploy"], found["attach"]
    lines = [f"start to Docker's first request: best {start['best_s']:.3f} s, median {start['median_s']:.3f} s of "
             f"{chosen.runs} (aim <= {AIM_START:g}); Python alone {start['python_s']:.3f} s",
             f"deployment with a GPU and a network function: {deploy['driver_s']:.3f} s, by hand "
             f"{deploy['hand_s']:.3f} s, ratio {deploy['ratio']:.2f} (aim <= {AIM_RATIO:g} and the start); "
             f"as bare requests {deploy['raw_s']:.3f} s, ratio {deploy['raw_ratio']:.2f}",
             f"a GPU into a running container: {attach['engine_s']:.3f} s (aim <= {AIM_ATTACH:g}); the whole action "
             f"attach_nic {attach['action_s']:.3f} s"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
