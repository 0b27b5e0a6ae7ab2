# SPDX-License-Identifier: Apache-2.0
"""Compute hosts that only report their resources: nova's ResourceTracker with our driver, one host after the other.

    python -m bench.manyhosts.trackers CONFIGURATION TREES HOSTS GPUS...

Each has its service (disabled, without RPC), its node, its providers in Placement, and as many GPUs as the one of GPUS
that is its turn. TREES/GPUS is the emulated host. Prints JSON: of each number of GPUs the mean of the first update, of
one at rest, and of one that reads all of Placement's providers anew, as every five minutes: seconds, processor time of
this process, and requests to Placement by method.
"""

import collections
import json
import sys
import time
import types
from pathlib import Path
from typing import Any

from nova import config as nova_config
from nova import context, objects
from nova.compute.resource_tracker import ResourceTracker
from nova.conductor import rpcapi
from nova.conf import CONF
from nova.objects import base
from nova.scheduler.client.report import SchedulerReportClient
from nova.virt import node

from bench.manyhosts.simulation import simulate
from nova_lxd_ext.driver import LXDDriver

UPDATES = ("first", "at rest", "refreshed")


class Client(SchedulerReportClient):
    """Count the requests to Placement.

    :ivar asked: by method
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked: collections.Counter[str] = collections.Counter()

    def get(self, *args: Any, **more: Any) -> Any:
        self.asked["GET"] += 1
        return super().get(*args, **more)

    def put(self, *args: Any, **more: Any) -> Any:
        self.asked["PUT"] += 1
        return super().put(*args, **more)

    def post(self, *args: Any, **more: Any) -> Any:
        self.asked["POST"] += 1
        return super().post(*args, **more)


def resource_class(gpus: int) -> str:
    return f"CUSTOM_GPU_OF_{gpus}"


def tracker(number: int, gpus: int, trees: Path) -> ResourceTracker:
    """Return the tracker of a new host."""
    name, state = f"tracker-{number}", trees / f"tracker-{number}"
    state.mkdir()
    simulate(trees / str(gpus))
    node.LOCAL_NODE_UUID = None
    for option, value, group in (("host", name, None), ("state_path", str(state), None),
                                 ("owners_dir", str(state / "owners"), "lxd"),
                                 ("device_spec", [json.dumps({"vendor_id": "10de", "product_id": "20b0",
                                                              "resource_class": resource_class(gpus)})], "pci")):
        CONF.set_override(option, value, group)
    service = objects.Service(context.get_admin_context(), host=name, binary="nova-compute", topic="compute",
                              disabled=True, disabled_reason="has no RPC", report_count=0)
    service.create()
    manager = types.SimpleNamespace()
    driver = LXDDriver(types.SimpleNamespace(_compute=manager))
    manager.rt = ResourceTracker(name, driver, Client())
    manager.rt.set_service_ref(service)
    return manager.rt


def measured(found: ResourceTracker, update: str) -> dict[str, float]:
    client: Any = found.reportclient
    if update == "refreshed":
        client._association_refresh_time.clear()
    client.asked.clear()
    wall, own = time.perf_counter(), time.process_time()
    found.update_available_resource(context.get_admin_context(), found.host, startup=update == "first")
    return {"seconds": time.perf_counter() - wall, "processor": time.process_time() - own, **client.asked}


def main() -> None:
    file, trees, hosts, *gpus = sys.argv[1:]
    nova_config.parse_args(["nova-compute", "--config-file", file], configure_db=False)
    objects.register_all()
    base.NovaObject.indirection_api = rpcapi.ConductorAPI()
    totals: dict[str, dict[str, collections.Counter[str]]] = {
        each: {update: collections.Counter() for update in UPDATES} for each in gpus}
    counts: collections.Counter[str] = collections.Counter()
    for number in range(int(hosts)):
        each = gpus[number % len(gpus)]
        counts[each] += 1
        found = tracker(number, int(each), Path(trees))
        for update in UPDATES:
            totals[each][update].update(measured(found, update))  # type: ignore[arg-type]  (seconds, too)
    print(json.dumps({each: {update: {key: value / counts[each] for key, value in total.items()}
                             for update, total in updates.items()} for each, updates in totals.items()}))


if __name__ == "__main__":
    main()
