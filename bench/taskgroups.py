#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure nova-scheduler's time for a job with task groups: aim < 1 s for the filter with 10,000 hosts.

It sees all of them for the first server; the time shall grow no faster than the number of hosts.

    .venv/bin/python bench/taskgroups.py [--hosts N ...] [--servers N] [--groups N] [--runs N] [--json]

Nova's own HostManager and SchedulerManager schedule one request of so many servers; Placement and the database are left
out. Printed are the seconds in the filter and in the weigher of this project, and those of the whole request.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import time
from typing import Any

os.environ.setdefault("OS_NOVA_DISABLE_EVENTLET_PATCHING", "1")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from nova import objects

objects.register_all()

from nova_lxd_ext.scheduler import TaskGroupFilter, TaskGroupWeigher  # noqa: E402  (needs nova's objects)
from tests.unit.nova import schedulerkit as kit  # noqa: E402

LIMIT_SECONDS = 1.0


def timed(spent: list[float], method: Any) -> Any:
    def wrapper(*args: Any) -> Any:
        begin = time.perf_counter()
        try:
            return method(*args)
        finally:
            spent.append(time.perf_counter() - begin)
    return wrapper


def run(hosts: int, servers: int, groups: int) -> dict[str, float]:
    """Schedule one job; seconds."""
    nodes = [kit.compute_node(f"n{at}", 64 + at % 64, used=at % 60) for at in range(hosts)]
    network = {f"n{at}": {"rack": f"r{at // 40}", "switch": f"s{at // 20}"} for at in range(hosts)}
    filtering: list[float] = []
    weighing: list[float] = []
    originals = TaskGroupFilter.filter_all, TaskGroupWeigher.weigh_objects
    TaskGroupFilter.filter_all = timed(filtering, originals[0])
    TaskGroupWeigher.weigh_objects = timed(weighing, originals[1])
    try:
        with kit.Cloud(nodes, network) as cloud:
            members = kit.uuids(servers)
            spec = kit.request(members[0], kit.server_group(members), {"task_groups": str(groups)}, servers)
            begin = time.perf_counter()
            placed = cloud.schedule(spec, members)
            total = time.perf_counter() - begin
    finally:
        TaskGroupFilter.filter_all, TaskGroupWeigher.weigh_objects = originals
    if len(placed) != servers or len(set(placed)) != groups:
        raise SystemExit(f"{len(placed)} servers on {len(set(placed))} hosts instead of {servers} on {groups}")
    return {"first_filter_s": filtering[0], "filter_s": sum(filtering), "weigher_s": sum(weighing), "request_s": total}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--servers", type=int, default=256)
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = {}
    for hosts in options.hosts:
        runs = [run(hosts, options.servers, options.groups) for _ in range(options.runs)]
        result[hosts] = {key: statistics.median(found[key] for found in runs) for key in runs[0]}
    if options.json:
        print(json.dumps(result))
        return
    print(f"{options.servers} servers in {options.groups} groups, median of {options.runs}; aim: first filter below "
          f"{LIMIT_SECONDS:g} s")
    print(f"{'hosts':>8} {'first filter':>13} {'all filters':>12} {'weigher':>9} {'request':>9}")
    for hosts, row in result.items():
        print(f"{hosts:>8} {row['first_filter_s']:>11.3f} s {row['filter_s']:>10.3f} s {row['weigher_s']:>7.3f} s "
              f"{row['request_s']:>7.3f} s")


if __name__ == "__main__":
    main()
