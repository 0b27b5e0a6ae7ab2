#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attaching a port to a running server, and detaching it, against raw LXD calls with the same interface: aim <= 1.2 x.

    sudo .venv/bin/python bench/attach_interface.py [--runs N] [--json]

Both make the same pair of interfaces by the same netlink request and, where the port is one of Open vSwitch, plug it by
the same call of os-vif; what the driver adds is compared. In turns, so that a busy machine slows both alike; medians.
"""

import json
import statistics
import sys
import uuid
from typing import Any

import emulated
import stage
from nova import objects
from nova.network import model
from raw import Raw
from spawn import timed

from containerhost.engines.network.veth import Veths
from nova_lxd_ext.network import vifconfig
from nova_lxd_ext.network.vifplug import Plugs
from nova_lxd_ext.network.vifs import described
from nova_lxd_ext.privsep import privileged
from tests.functional.ovs import OpenVSwitch
from tests.unit.nova import ports

AIM = 1.2
KINDS: dict[str, dict[str, Any]] = {"plain": {"type": "tap", "details": {}}, "Open vSwitch": {}}


def main() -> int:
    chosen = emulated.options(__doc__, runs=30)
    emulated.enter()
    with OpenVSwitch(), stage.Stage() as scene:
        server = scene.server(1)
        server.info_cache = objects.InstanceInfoCache(network_info=model.NetworkInfo())  # there is no database
        scene.spawn(server)
        found = {name: Comparison(scene, server, kind).run(chosen.runs) for name, kind in KINDS.items()}
        scene.driver.destroy(None, server, model.NetworkInfo())
    if chosen.json:
        print(json.dumps(found))
    else:
        for name, times in found.items():
            for what in ("attach", "detach"):
                print(f"{what}_interface, {name}: driver {times[f'{what}_driver_s']:.3f} s, raw "
                      f"{times[f'{what}_raw_s']:.3f} s, ratio {times[f'{what}_ratio']:.2f} (aim <= {AIM:g}), medians "
                      f"of {chosen.runs}")
    return int(any(times["attach_ratio"] > AIM for times in found.values()))


class Comparison:
    """:param kind: what is special about the port (nova.network.model.VIF)"""

    def __init__(self, scene: stage.Stage, server: Any, kind: dict[str, Any]) -> None:
        self._driver, self._image, self._server, self._kind = scene.driver, scene.image_meta, server, kind
        self._raw = Raw(scene.lxd.socket)
        self._veths = Veths(privileged())
        self._plugs = Plugs(self._veths)

    def run(self, runs: int) -> dict[str, float]:
        times: dict[str, list[float]] = {f"{what}_{who}_s": [] for what in ("attach", "detach")
                                         for who in ("driver", "raw")}
        for _ in range(runs):
            for who, attach, detach in (("driver", self.attach, self.detach), ("raw", self.plug, self.unplug)):
                vif = ports.vif(str(uuid.uuid4()), **self._kind)
                times[f"attach_{who}_s"].append(timed(lambda attach=attach, vif=vif: attach(vif)))
                times[f"detach_{who}_s"].append(timed(lambda detach=detach, vif=vif: detach(vif)))
        medians = {name: statistics.median(found) for name, found in times.items()}
        return medians | {f"{what}_ratio": medians[f"{what}_driver_s"] / medians[f"{what}_raw_s"]
                          for what in ("attach", "detach")}

    def attach(self, vif: model.VIF) -> None:
        self._driver.attach_interface(None, self._server, self._image, vif)

    def detach(self, vif: model.VIF) -> None:
        self._driver.detach_interface(None, self._server, vif)

    def plug(self, vif: model.VIF) -> None:
        self._veths.make(vifconfig.pair(self._server.uuid, vif))
        self._plugs.plug(described(self._server), vif)
        nic = {"type": "nic", "nictype": "physical", "parent": vifconfig.inner_end(vif), "name": "eth0",
               "hwaddr": ports.MAC, "mtu": "1450"}
        self._raw.call("PATCH", f"instances/{self._server.name}", {"devices": {"nic-eth0": nic}})

    def unplug(self, vif: model.VIF) -> None:
        made = self._raw.call("GET", f"instances/{self._server.name}")
        del made["devices"]["nic-eth0"]
        self._raw.call("PUT", f"instances/{self._server.name}", made)
        self._plugs.unplug(described(self._server), vif)
        self._veths.remove(vifconfig.host_end(vif))


if __name__ == "__main__":
    sys.exit(main())
