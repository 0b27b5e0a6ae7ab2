#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""OpenNebula's driver: what its start costs, and a deployment.

    sudo .venv/bin/python bench/opennebula.py [--runs N] [--json]

Start: from the call of the installed script ``reset`` to the first connection to LXD, of which this program plays the
part; aim <= 0.25 s for the median. Deployment: of a disk with a file system that LXD does not have yet, against
mounting it, packing it, importing it and starting a container of it by raw calls; aim <= 1.3 times and the start.
The driver is installed, by itself. What monitoring costs is in bench/host.py.
"""

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

from emulated import enter, installed, options
from raw import Raw

from tests.functional_one import diskfiles
from tests.functional_one.node import Node
from tests.functional_one.vms import ROOT, Machine

AIM_START, AIM_RATIO = 0.25, 1.3  # s; of a raw request, beside the start
CONTENT = 192 << 20  # bytes of files on the disk that is deployed
TIMEOUT = 60  # s


def main() -> int:
    chosen = options(__doc__, runs=15)
    commands = installed("lxdone")
    enter()
    with Node(commands) as node:
        found = {"start": starts(node, commands, chosen.runs)}
        node.configure()
        found |= {"deploy": deploys(node, max(1, chosen.runs // 3))}
    print(json.dumps(found) if chosen.json else told(found, chosen))
    return int(not reached(found))


def starts(node: Node, commands: Path, runs: int, scheme: str = "") -> dict[str, float]:
    """:param scheme: begins the endpoint in the driver's options
    """
    path = node.remotes / "engine.socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(TIMEOUT)
        node._conf.write_text(f'endpoint = "{scheme}{path}"\nstate = "{node.state}"\nowners = "{node.owners}"\n')
        with futures.ThreadPoolExecutor(1) as pool:
            times = [start(node, listener, pool) for _ in range(runs)]
    path.unlink()
    python = [timed(lambda: subprocess.run([commands / "python", "-c", "pass"], check=True)) for _ in range(runs)]
    return {"best_s": min(times), "median_s": statistics.median(times), "python_s": statistics.median(python)}


def start(node: Node, listener: socket.socket, pool: futures.Executor) -> float:
    begin = time.perf_counter()
    action = pool.submit(node.act, "reset", Machine())
    connection, _ = listener.accept()
    found = time.perf_counter() - begin
    connection.close()
    # The action goes on to fail, as there is no engine; a second try of it is none of a start.
    listener.setblocking(False)
    while not action.done():
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            time.sleep(0.01)
    listener.settimeout(TIMEOUT)
    return found


def deploys(node: Node, runs: int) -> dict[str, float]:
    """Image and container are gone before the next one."""
    with tempfile.TemporaryDirectory(dir=node.remotes.parent) as directory:
        disk = disk_with_files(node, Path(directory))
        raw = Raw(node.lxd.socket)
        pairs = []
        for _ in range(runs):
            pairs.append((timed(lambda: deploy_raw(raw, node.lxd.pool, disk, Path(directory))), deploy(node, disk)))
            remove_raw(raw)
    raw_s, driver_s = (statistics.median(times) for times in zip(*pairs, strict=True))
    return {"raw_s": raw_s, "driver_s": driver_s, "ratio": driver_s / raw_s}


def disk_with_files(node: Node, directory: Path) -> Path:
    tree = diskfiles.tree(node.lxd.images["unified"], directory)
    (tree / "root/files").write_bytes(os.urandom(CONTENT))
    disk = directory / "disk"
    with disk.open("wb") as file:
        file.truncate(CONTENT * 3 // 2)
    subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", "-d", str(tree), str(disk)], check=True)
    return disk


def deploy(node: Node, disk: Path) -> float:
    machine = Machine(disks=ROOT.replace("256", "1024"))
    node.give_disk(machine, disk)
    results = []
    found = timed(lambda: results.append(node.act("deploy", machine, lcm=2)))
    results.append(node.act("cancel", machine, lcm=23))
    if any(result.status for result in results):
        raise RuntimeError(results)
    return found


def deploy_raw(raw: Raw, pool: str, disk: Path, directory: Path) -> None:
    tarball, point = directory / "raw.tar", directory / "point"
    point.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", "loop,ro", str(disk), str(point)], check=True)
    try:
        metadata = directory / "metadata.yaml"
        metadata.write_text(f"architecture: {platform.machine()}\ncreation_date: 1\n")
        subprocess.run(["tar", "--create", "--file", str(tarball), "--numeric-owner", "--xattrs",
                        "--transform=s,^[.],rootfs,S", "--directory", str(point), "."], check=True)
        subprocess.run(["tar", "--append", "--file", str(tarball), "--directory", str(directory), "metadata.yaml"],
                       check=True)
    finally:
        subprocess.run(["umount", str(point)], check=True)
    image = raw.upload(tarball)
    raw.call("POST", "instances", {
        "name": "raw", "type": "container", "profiles": [],
        "devices": {"root": {"type": "disk", "path": "/", "pool": pool, "size": str(1 << 30)}},
        "source": {"type": "image", "fingerprint": image}})
    raw.call("PUT", "instances/raw/state", {"action": "start", "timeout": TIMEOUT})


def remove_raw(raw: Raw) -> None:
    raw.call("PUT", "instances/raw/state", {"action": "stop", "force": True, "timeout": TIMEOUT})
    raw.call("DELETE", "instances/raw")
    for url in raw.call("GET", "images"):
        raw.call("DELETE", url.removeprefix("/1.0/"))


def timed(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def reached(found: dict[str, Any]) -> bool:
    return found["start"]["median_s"] <= AIM_START and is_near(found["deploy"]["driver_s"], found["deploy"]["raw_s"])


def is_near(seconds: float, raw: float) -> bool:
    return seconds <= AIM_RATIO * raw + AIM_START


def told(found: dict[str, Any], chosen: argparse.Namespace) -> str:
    start = found["start"]
    lines = [f"start to LXD's first request: best {start['best_s']:.3f} s, median {start['median_s']:.3f} s of "
             f"{chosen.runs} (aim <= {AIM_START:g}); Python alone {start['python_s']:.3f} s",
             f"deployment of a disk with {CONTENT >> 20} MiB of files: {found['deploy']['driver_s']:.2f} s, raw "
             f"{found['deploy']['raw_s']:.2f} s, ratio {found['deploy']['ratio']:.2f} (aim <= {AIM_RATIO:g} and "
             "the start)"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
