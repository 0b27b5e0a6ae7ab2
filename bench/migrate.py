#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Moving a running server to another host through the driver, against LXD's own copy by raw calls: aim <= 1.2 times.

    sudo .venv/bin/python bench/migrate.py [--runs N] [--mib N] [--json]

Two daemons on this machine. Both sides stop the container, copy it and start it on the other daemon, in turns. The
drivers of the two hosts talk over a message bus in memory. Medians; clearing up is not timed.
"""

import argparse
import json
import os
import statistics
import sys
from typing import Any
from unittest import mock

import emulated
import nova.conf
import stage
from nova import context, objects
from raw import Raw
from spawn import timed

from nova_lxd_ext import backend
from nova_lxd_ext.instance.requested import NOTHING
from tests.functional.lxd import Daemon
from tests.unit.nova import records

AIM = 1.2
MOVE = 1
MIB = 2**20


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=10)
    options.add_argument("--mib", type=int, default=256, help="size of the server's files")
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    emulated.enter()
    other = Daemon()
    try:
        other.start()
        other.make_pool()
        with stage.Stage() as scene:
            times = compare(scene, other, chosen.runs, chosen.mib)
    finally:
        other.remove()
    if chosen.json:
        print(json.dumps(times))
    else:
        print(f"migration of {chosen.mib} MiB: driver {times['driver_s']:.3f} s, raw {times['raw_s']:.3f} s, "
              f"ratio {times['ratio']:.2f} (aim <= {AIM:g}), medians of {chosen.runs}")
    return int(times["ratio"] > AIM)


def compare(scene: stage.Stage, other: Daemon, runs: int, mib: int) -> dict[str, float]:
    conf = nova.conf.CONF
    address = listen(Raw(scene.lxd.socket))
    conf.set_override("migration_address", address, "lxd")
    here = backend.build(conf)
    conf.set_override("endpoint", other.socket, "lxd")
    there = backend.build(conf)
    there.peers.listen("there", there.incoming)
    server = scene.server(1)
    server.new_flavor = server.flavor
    server.migration_context = objects.MigrationContext(migration_id=MOVE)
    move = objects.Migration(id=MOVE, uuid=records.UUID, source_compute="here", dest_compute="there",
                             status="migrating")
    admin = context.get_admin_context()
    scene.spawn(server)
    fill(scene, server.name, mib)
    source, target = Raw(scene.lxd.socket), Raw(other.socket)

    def by_driver() -> None:
        here.moves.migrate(admin, server, server.flavor, NOTHING, 0, 0)
        there.moves.finish(admin, server, NOTHING, True)

    def by_raw() -> None:
        set_state(source, server.name, "stop")
        copy(source, target, server.name, address)
        set_state(target, server.name, "start")

    def back() -> None:
        there.lifecycle.remove(server)
        here.power.on(server, NOTHING)

    driver, plain = [], []
    with mock.patch.object(objects.Migration, "get_by_id", return_value=move):
        for _ in range(runs):
            driver.append(timed(by_driver))
            back()
            plain.append(timed(by_raw))
            back()
    there.peers.close()
    times = {"driver_s": statistics.median(driver), "raw_s": statistics.median(plain)}
    return times | {"ratio": times["driver_s"] / times["raw_s"]}


def listen(raw: Raw) -> str:
    raw.call("PATCH", "", {"config": {"core.https_address": "127.0.0.1:8443"}})
    return "https://127.0.0.1:8443"


def fill(scene: stage.Stage, name: str, mib: int) -> None:
    pid = scene.lxd.engine.metrics(name).pid
    with open(f"/proc/{pid}/root/root/files", "wb") as file:
        for _ in range(mib):
            file.write(os.urandom(MIB))
        os.fsync(file.fileno())


def set_state(raw: Raw, name: str, action: str) -> None:
    raw.call("PUT", f"instances/{name}/state", {"action": action, "force": True, "timeout": 60})


def copy(source: Raw, target: Raw, name: str, address: str) -> None:
    """Copy a container as ``lxc copy --mode pull`` asks both daemons for."""
    made = source.call("GET", f"instances/{name}")
    certificate = source.call("GET", "")["environment"]["certificate"]
    offered = source.begin("POST", f"instances/{name}", {"migration": True, "live": False, "instance_only": True})
    kept = ("volatile.base_image", "volatile.last_state.idmap")
    config = {key: value for key, value in made["config"].items() if not key.startswith("volatile.") or key in kept}
    body: dict[str, Any] = {"name": name, "type": "container", "profiles": [], "architecture": made["architecture"],
                            "config": config, "devices": made["devices"]}
    target.call("POST", "instances", body | {"source": {
        "type": "migration", "mode": "pull", "operation": f"{address}/1.0/operations/{offered['id']}", "live": False,
        "instance_only": True, "certificate": certificate, "secrets": offered["metadata"]}})


if __name__ == "__main__":
    sys.exit(main())
