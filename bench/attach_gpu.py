#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure giving a running server a GPU through the driver, and taking it, against LXD's own client.

Aim for giving: <= 1.15 x ``lxc config device add``.

    sudo .venv/bin/python bench/attach_gpu.py [--runs N] [--json]

The driver claims the GPU on the host, checks who has it, gives it, looks whether the container sees exactly it, and
tells the guest; ``lxc`` only gives it. In turns, so that a busy machine slows both alike; medians.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
from typing import Any
from unittest import mock

import emulated
import stage
from nova import objects
from nova.compute import vm_states
from nova.network import model
from spawn import timed

AIM = 1.15
GPU = "0000:3b:00.0"
MOVE = "00000000-0000-4000-8000-00000000aaaa"


def main() -> int:
    chosen = emulated.options(__doc__, runs=30)
    emulated.enter()
    with stage.Stage() as scene:
        found = compare(scene, chosen.runs)
    if chosen.json:
        print(json.dumps(found))
    else:
        for what in ("give", "take"):
            print(f"{what} a GPU: driver {found[f'{what}_driver_s']:.3f} s, lxc {found[f'{what}_lxc_s']:.3f} s, ratio "
                  f"{found[f'{what}_ratio']:.2f}{f' (aim <= {AIM:g})' if what == 'give' else ''}, medians of "
                  f"{chosen.runs}")
    return int(found["give_ratio"] > AIM)


def compare(scene: stage.Stage, runs: int) -> dict[str, float]:
    bare, equipped = scene.server(1), scene.server(1, ("gpu", GPU))
    scene.spawn(bare)
    client = shutil.which("lxc") or shutil.which("incus") or "lxc"

    def lxc(*command: str) -> None:
        subprocess.run([client, "config", "device", *command], env={**os.environ, **scene.lxd.daemon.environment},
                       check=True, capture_output=True, stdin=subprocess.DEVNULL)

    acts = {
        "give_driver_s": lambda: resize(scene, bare, equipped),
        "take_driver_s": lambda: resize(scene, equipped, bare),
        "give_lxc_s": lambda: lxc("add", bare.name, "gpu", "gpu", "gputype=physical", f"pci={GPU}", "mode=0666"),
        "take_lxc_s": lambda: lxc("remove", bare.name, "gpu"),
    }
    times: dict[str, list[float]] = {name: [] for name in acts}
    for _ in range(runs):
        for name, act in acts.items():
            times[name].append(timed(act))
    scene.driver.destroy(None, bare, None)
    found = {name: statistics.median(measured) for name, measured in times.items()}
    return found | {f"{what}_ratio": found[f"{what}_driver_s"] / found[f"{what}_lxc_s"] for what in ("give", "take")}


def resize(scene: stage.Stage, old: Any, new: Any) -> None:
    """Call what nova calls, without its database: the server leaves for its own host, with the other one's claims."""
    server = old.obj_clone()
    server.vm_state, server.new_flavor = vm_states.ACTIVE, old.flavor
    server.migration_context = objects.MigrationContext(
        migration_id=1, old_pci_devices=old.pci_devices, old_pci_requests=old.pci_requests, old_numa_topology=None,
        new_pci_devices=new.pci_devices, new_pci_requests=new.pci_requests, new_numa_topology=None)
    move = objects.Migration(id=1, uuid=MOVE, source_compute="bench", dest_compute="bench", status="migrating")
    with mock.patch.object(objects.Migration, "get_by_id", return_value=move):
        scene.driver.migrate_disk_and_power_off(None, server, "bench", old.flavor, model.NetworkInfo(), {})


if __name__ == "__main__":
    sys.exit(main())
