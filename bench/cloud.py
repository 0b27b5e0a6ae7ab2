#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A cloud of many compute hosts: how long boots of servers with a GPU take, and what Placement's part of it is.

    sudo .venv/bin/python bench/cloud.py [--hosts N] [--gpus N] [--boots N] [--at-once N] [--rest SECONDS]
        [--trackers N] [--devices N ...] [--json]

MariaDB, RabbitMQ, keystone, glance, Placement and nova's services are real, and so is a nova-compute with our driver
for each host. Of a host are simulated: its devices, a tree of files with --gpus GPUs and as many virtual functions, and
LXD, whose API a process answers from memory (manyhosts/memorylxd.py). No container runs.

--at-once users boot a server with a GPU, wait until it is ACTIVE in nova's database, and delete their oldest one when
the GPUs become few. Before that the cloud rests for --rest seconds, in which Placement's requests are counted.
--trackers further hosts then report their resources to Placement, as a nova-compute without RPC does
(manyhosts/trackers.py), each with as many GPUs as its turn of --devices. Measured is how long Placement takes to find
hosts for one GPU and for two.
Aim: the 99th percentile of the boots <= 2 times their median. Figures of a machine that does other work as well are too
high; processor times are the services' own.
"""

import argparse
import collections
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import emulated

from bench.manyhosts.figures import AIM_RATIO, per_service, percentile, placement_requests, text
from bench.manyhosts.stage import Stage, say

FULL = 0.75  # of all GPUs may be in use before servers are deleted
POLL_INTERVAL = 0.05  # s between two looks into the database
TIMEOUT = 600
WANTED = 1, 2  # GPUs
RUNS = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in (("--hosts", 40), ("--gpus", 8), ("--boots", 1000), ("--at-once", 8), ("--rest", 120),
                            ("--trackers", 1000)):
        parser.add_argument(option, type=int, default=default)
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep-logs", type=Path, metavar="DIRECTORY", help="copy the services' logs there")
    chosen = parser.parse_args()
    emulated.enter()
    found: dict[str, Any] = {"hosts": chosen.hosts, "gpus": chosen.gpus, "at_once": chosen.at_once}
    with Stage(chosen.hosts, chosen.gpus, chosen.keep_logs) as stage:
        parts: dict[str, Callable[[], Any]] = {
            "memory_mib": stage.memory, "rest": lambda: rest(stage, chosen.rest),
            "boots": lambda: boots(stage, chosen.boots, chosen.at_once),
            "trackers": lambda: trackers(stage, chosen.trackers, chosen.devices)}
        for name, part in parts.items():
            found[name] = part()
            say(f"{name}: {json.dumps(found[name])}")
    print(json.dumps(found) if chosen.json else text(found))
    return int(found["boots"]["p99"] > AIM_RATIO * found["boots"]["p50"] or found["boots"]["failed"] > 0)


# At rest.


def rest(stage: Stage, seconds: int) -> dict[str, Any]:
    """Count what the periodic tasks of the hosts ask Placement for."""
    if not seconds:
        return {}
    say(f"Resting for {seconds} s")
    before, told, spent = size(stage.placement_log), size(stage.conductor_log), stage.spent()
    time.sleep(seconds)
    requests = placement_requests(stage.placement_log, before)
    per = stage.hosts * seconds / 60
    return {"seconds": seconds,
            "requests_per_host_minute": {kind: len(found) / per for kind, found in requests.items()},
            "conductor_per_host_minute": counted(stage.conductor_log, told, per),
            "processor_per_host_minute": per_service(spent, stage.spent(), per)}


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


# Boots.


class User(threading.Thread):
    """Boot servers one after the other, and delete the oldest when there are too many.

    :param watch: the view of all servers
    :ivar seconds: of each boot, from the request to ACTIVE
    :ivar failed: what failed
    """

    def __init__(self, stage: Stage, watch: "Watch", boots: Iterator[int], most: int) -> None:
        super().__init__()
        self._stage, self._watch, self._boots, self._most = stage, watch, boots, most
        self._servers: collections.deque[str] = collections.deque()
        self.seconds: list[float] = []
        self.failed: list[str] = []

    def run(self) -> None:
        compute = self._stage.cloud.connect("admin").compute
        body = {"name": "bench", "imageRef": self._stage.image, "flavorRef": self._stage.flavor, "networks": "none"}
        for _ in self._boots:
            begin = time.monotonic()
            answer = compute.post("/servers", json={"server": body}, microversion="2.37")
            if answer.status_code != 202:
                self.failed.append(answer.text)
                continue
            server = answer.json()["server"]["id"]
            state, end = self._watch.until(server, ("active", "error"))
            if state == "active":
                self.seconds.append(end - begin)
            else:
                self.failed.append(f"server {server} is {state}")
            self._servers.append(server)
            if len(self._servers) > self._most:
                oldest = self._servers.popleft()
                compute.delete(f"/servers/{oldest}")
                self._watch.until(oldest, ("gone",))


class Watch(threading.Thread):
    """Look again and again into nova's database: polls of the API would be a load of their own."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(daemon=True)
        self._stage = stage
        self._changed = threading.Condition()
        self._states: dict[str, tuple[str, float]] = {}
        self.over = False

    def run(self) -> None:
        with self._stage.database() as cursor:
            while not self.over:
                cursor.execute("SELECT uuid, IF(deleted, 'gone', vm_state), task_state FROM instances "
                               "WHERE updated_at > NOW() - INTERVAL 1 DAY OR NOT deleted")
                now = time.monotonic()
                with self._changed:
                    for uuid, state, task in cursor.fetchall():
                        if self._states.get(uuid, ("",))[0] != state and (task is None or state in ("gone", "error")):
                            self._states[uuid] = state, now
                    self._changed.notify_all()
                time.sleep(POLL_INTERVAL)

    def until(self, server: str, wanted: Sequence[str]) -> tuple[str, float]:
        """Wait for one of the states; return it and when it was first seen."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._states.get(server, ("",))[0] in wanted, TIMEOUT):
                return "slow", time.monotonic()
            return self._states[server]


def boots(stage: Stage, count: int, at_once: int) -> dict[str, Any]:
    watch = Watch(stage)
    watch.start()
    most = max(0, int(stage.hosts * stage.gpus * FULL) // at_once)
    first = User(stage, watch, iter(range(1)), 0)  # its host fetches the image, which all of them have then
    first.run()
    say(f"The first boot took {first.seconds or first.failed}; {count} boots by {at_once} users")
    numbers = Shared(count)
    users = [User(stage, watch, numbers, most) for _ in range(at_once)]
    logs = stage.placement_log, stage.lxd_log, stage.conductor_log
    placed, asked, told = map(size, logs)
    spent, begin = stage.spent(), time.monotonic()
    for user in users:
        user.start()
    for user in users:
        user.join()
    took = time.monotonic() - begin
    processor = per_service(spent, stage.spent(), count)
    watch.over = True
    seconds = sorted(second for user in users for second in user.seconds)
    failed = [failure for user in users for failure in user.failed]
    for failure in failed[:5]:
        say(failure)
    requests = placement_requests(stage.placement_log, placed)
    in_placement = sum(wall for found in requests.values() for wall, _ in found)
    return {
        "count": len(seconds), "failed": len(failed), "per_minute": 60 * len(seconds) / took,
        "p50": percentile(seconds, 0.5), "p95": percentile(seconds, 0.95), "p99": percentile(seconds, 0.99),
        "rescheduled": rescheduled(stage), "placement_share": in_placement / sum(seconds or [math.inf]),
        "placement": {kind: {"per_boot": len(found) / count, "ms": 1000 * sum(wall for wall, _ in found) / len(found),
                             "processor_ms": 1000 * sum(own for _, own in found) / len(found)}
                      for kind, found in sorted(requests.items(), key=lambda item: -sum(map(sum, item[1])))},
        "lxd_per_boot": counted(stage.lxd_log, asked, count),
        "conductor_per_boot": counted(stage.conductor_log, told, count),
        "processor_per_boot": processor}


def counted(log: Path, offset: int, share: float) -> dict[str, float]:
    """Return how often each line is in a log since the offset, divided by a number of boots or hosts."""
    with log.open() as lines:
        lines.seek(offset)
        return {kind.strip(): number / share for kind, number in collections.Counter(lines).most_common()}


class Shared:
    """Numbers that several threads share out."""

    def __init__(self, count: int) -> None:
        self._numbers, self._lock = iter(range(count)), threading.Lock()

    def __iter__(self) -> "Shared":
        return self

    def __next__(self) -> int:
        with self._lock:
            return next(self._numbers)


def rescheduled(stage: Stage) -> int:
    """Return how many boots went to a second host after the first had refused."""
    with stage.database() as cursor:
        cursor.execute("SELECT COUNT(*) FROM (SELECT action_id FROM instance_actions_events WHERE event = "
                       "'compute__do_build_and_run_instance' GROUP BY action_id HAVING COUNT(*) > 1) AS again")
        return int(cursor.fetchone()[0])


# Further hosts.


def trackers(stage: Stage, count: int, gpus: Sequence[int]) -> dict[str, Any]:
    if not count:
        return {}
    say(f"{count} further hosts report their resources")
    begin = time.monotonic()
    updates = stage.trackers(count, gpus)
    say(f"They took {time.monotonic() - begin:.0f} s")
    return {"count": count, "updates": updates,
            "candidates": {str(each): {str(wanted): candidates(stage, each, wanted) for wanted in WANTED
                                       if wanted <= each} for each in gpus}}


def candidates(stage: Stage, gpus: int, wanted: int) -> dict[str, float]:
    """Let Placement find hosts of so many GPUs for a server, as nova's scheduler does."""
    query = {"resources": "VCPU:1,MEMORY_MB:128,DISK_GB:1", "limit": "1000"}
    query |= {f"resources_{number}": f"CUSTOM_GPU_OF_{gpus}:1" for number in range(wanted)}
    query |= {"group_policy": "none"} if wanted > 1 else {}
    times = []
    for _ in range(RUNS):
        answer = stage.admin.placement.get("/allocation_candidates", params=query, microversion="1.39")
        times.append(stage.placement_log.read_text().splitlines()[-1].split())
    found = answer.json()
    return {"seconds": min(float(each[1]) for each in times), "processor": min(float(each[2]) for each in times),
            "candidates": len(found["allocation_requests"]), "hosts": len({
                found["provider_summaries"][each]["root_provider_uuid"] for each in found["provider_summaries"]})}


if __name__ == "__main__":
    sys.exit(main())
