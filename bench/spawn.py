#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Booting a server through the driver, its image cached, against the same work by raw LXD calls: aim <= 1.15 times.

    sudo .venv/bin/python bench/spawn.py [--runs N] [--json]

Both make and start a container of the same configuration, in turns, so that a busy machine slows both alike: once
without devices and once with a GPU and an InfiniBand VF. Medians; what is not compared is not timed.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import emulated
import stage
from raw import Raw

AIM = 1.15
CLAIMS = {"no devices": (), "GPU and VF": (("gpu", "0000:3b:00.0"), ("vf", "0000:5e:00.1"))}


def main() -> int:
    chosen = emulated.options(__doc__, runs=30)
    emulated.enter()
    with stage.Stage() as scene:
        found = {name: compare(scene, claims, chosen.runs) for name, claims in CLAIMS.items()}
    if chosen.json:
        print(json.dumps(found))
    else:
        for name, times in found.items():
            print(f"spawn, {name}: driver {times['driver_s']:.3f} s, raw {times['raw_s']:.3f} s, "
                  f"ratio {times['ratio']:.2f} (aim <= {AIM:g}), medians of {chosen.runs}")
    return int(any(times["ratio"] > AIM for times in found.values()))


def compare(scene: stage.Stage, claims: tuple[tuple[str, str], ...], runs: int) -> dict[str, float]:
    raw = Raw(scene.lxd.socket)
    server = scene.server(1, *claims)
    body = same_body(scene, raw, server)

    def by_raw() -> None:
        raw.call("POST", "instances", body)
        raw.call("PUT", f"instances/{server.name}/state", {"action": "start", "timeout": 60})

    def end_raw() -> None:
        raw.call("PUT", f"instances/{server.name}/state", {"action": "stop", "force": True, "timeout": 60})
        raw.call("DELETE", f"instances/{server.name}")

    driver, plain = [], []
    for _ in range(runs):
        driver.append(timed(lambda: scene.spawn(server)))
        scene.driver.destroy(None, server, None)
        plain.append(timed(by_raw))
        end_raw()
    times = {"driver_s": statistics.median(driver), "raw_s": statistics.median(plain)}
    return times | {"ratio": times["driver_s"] / times["raw_s"]}


def same_body(scene: stage.Stage, raw: Raw, server: Any) -> dict[str, Any]:
    """Return what the driver asked LXD for, taken from a container it made."""
    scene.spawn(server)
    made = raw.call("GET", f"instances/{server.name}")
    scene.driver.destroy(None, server, None)
    config = {key: value for key, value in made["config"].items() if not key.startswith(("volatile.", "image."))}
    return {"name": server.name, "type": "container", "profiles": made["profiles"], "config": config,
            "devices": made["devices"], "source": {"type": "image", "fingerprint": scene.image}}


def timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
