#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure nova's periodic tasks on a host full of servers against LXD's own time to list them: aim <= 1.3 times.

    sudo .venv/bin/python bench/periodic.py [--containers N] [--runs N] [--json]

Power states: how many servers there are and the state of each, as nova's sync_power_states asks for them. Resources:
get_available_resource. Each is compared with one raw ``GET /1.0/instances?recursion=1`` of the same round; medians.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

import emulated
import stage
from raw import Raw

from nova_lxd_ext.instance import labels

AIM = 1.3
WORKERS = 4  # containers made at once


def main() -> int:
    chosen = emulated.options(__doc__, containers=1000, runs=15)
    emulated.enter()
    with stage.Stage() as scene:
        servers = [scene.server(number) for number in range(1, chosen.containers + 1)]
        fill(scene, servers)
        found = measure(scene, servers, chosen.runs)
    if chosen.json:
        print(json.dumps(found))
    else:
        print(f"{chosen.containers} containers, one raw list {found['raw_s']:.3f} s; medians of {chosen.runs} runs")
        for name in ("power states", "resources"):
            print(f"{name}: {found[name]['driver_s']:.3f} s, ratio {found[name]['ratio']:.2f} (aim <= {AIM:g})")
    return int(any(found[name]["ratio"] > AIM for name in ("power states", "resources")))


def fill(scene: stage.Stage, servers: Sequence[Any]) -> None:
    """Make stopped containers of nova's, by raw calls from one that the driver made."""
    scene.driver.spawn(None, servers[0], scene.image_meta, [], None, {}, power_on=False)
    made = Raw(scene.lxd.socket).call("GET", f"instances/{servers[0].name}")
    config = {key: value for key, value in made["config"].items() if not key.startswith(("volatile.", "image."))}
    # Ids of its own for each of a thousand are more than a machine usually has in /etc/subuid.
    config["security.idmap.isolated"] = "false"
    start = time.monotonic()

    def make(share: Sequence[Any]) -> None:
        raw = Raw(scene.lxd.socket)
        for server in share:
            raw.call("POST", "instances", {
                "name": server.name, "type": "container", "profiles": [], "devices": made["devices"],
                "config": config | {f"user.{key}": value for key, value in labels.of(server).items()},
                "source": {"type": "image", "fingerprint": scene.image}})

    with futures.ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(make, [servers[1:][part::WORKERS] for part in range(WORKERS)]))
    print(f"made {len(servers)} containers in {time.monotonic() - start:.0f} s", file=sys.stderr)


def measure(scene: stage.Stage, servers: Sequence[Any], runs: int) -> dict[str, Any]:
    raw = Raw(scene.lxd.socket)
    driver = scene.driver

    def power_states() -> None:
        if driver.get_num_instances() != len([driver.get_info(server).state for server in servers]):
            raise RuntimeError("the driver does not see every container")

    times: dict[str, list[float]] = {"raw": [], "power states": [], "resources": []}
    for _ in range(runs):
        driver._backend.states.changed()  # as if the last round were a minute ago
        times["raw"].append(timed(lambda: raw.call("GET", "instances?recursion=1")))
        times["power states"].append(timed(power_states))
        times["resources"].append(timed(lambda: driver.get_available_resource("bench")))
    raw_s = statistics.median(times.pop("raw"))
    medians = {name: statistics.median(found) for name, found in times.items()}
    return {"raw_s": raw_s} | {name: {"driver_s": value, "ratio": value / raw_s} for name, value in medians.items()}


def timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
