#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reset GPUs that nova reports as broken, as often as it takes until they are well.

    repair.py /etc/nova/nova.conf ssh root@{host} containerhost scrub {device}

Listens to nova's notification device_faults.update, where its configuration leads, and runs the command for each GPU
that no running container has: it is free, blocked, or its server goes on without it. A tainted one is the operator's.
What is to be done follows from the last notification of each host alone, so this may end at any time and be started
again.

Prints a line of JSON for each notification (``devices``: the host's complete list) and each repair (``status``).
"""

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import oslo_messaging
from oslo_config import cfg

TOPIC, EVENT, POOL = "versioned_notifications", r"^device_faults\.update$", "breakfix"
RETRY = 60.0  # s, after which a repair that failed is tried again
TIMEOUT = 600  # s for one repair
IDLE = frozenset({"free", "detached", "blocked"})  # states in which no running container is given the device


class Faults:
    """Hold the last list of each host; an endpoint of oslo.messaging."""

    filter_rule = oslo_messaging.NotificationFilter(event_type=EVENT)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_host: dict[str, list[Mapping[str, Any]]] = {}
        self.news = threading.Event()

    def info(self, context: Any, publisher: str, event: str, payload: Mapping[str, Any], metadata: Any) -> None:
        found = payload["nova_object.data"]
        devices = [device["nova_object.data"] for device in found["devices"]]
        with self._lock:
            self._by_host[found["host"]] = devices
        tell(host=found["host"], devices=devices)
        self.news.set()

    error = info

    def repairs(self) -> list[tuple[str, str]]:
        """Return the hosts and devices to repair."""
        with self._lock:
            return [(host, device["device"]) for host, devices in self._by_host.items() for device in devices
                    if is_repairable(device)]


def is_repairable(device: Mapping[str, Any]) -> bool:
    """Return whether a reset may help, and disturbs nobody."""
    return device["kind"] == "gpu" and device["state"] in IDLE and device["taint"] is None


def repair(command: Sequence[str], host: str, device: str) -> None:
    words = [word.replace("{host}", host).replace("{device}", device) for word in command]
    try:
        done = subprocess.run(words, text=True, capture_output=True, timeout=TIMEOUT, check=False)
        tell(host=host, repaired=device, status=done.returncode, output=(done.stdout or done.stderr).strip())
    except (OSError, subprocess.TimeoutExpired) as error:
        tell(host=host, repaired=device, status=None, output=str(error))


def tell(**found: Any) -> None:
    print(json.dumps({"time": round(time.time(), 1), **found}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="nova.conf")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="with {host} and {device}")
    chosen = parser.parse_args()
    conf, faults = cfg.ConfigOpts(), Faults()
    oslo_messaging.set_transport_defaults("nova")  # as nova does: the exchange, unless its configuration names another
    conf(["--config-file", chosen.config], project="nova")
    listener = oslo_messaging.get_notification_listener(
        oslo_messaging.get_notification_transport(conf), [oslo_messaging.Target(topic=TOPIC)], [faults],
        executor="threading", pool=POOL)
    listener.start()
    while True:
        faults.news.wait(RETRY)
        faults.news.clear()
        for host, device in faults.repairs():
            repair(chosen.command, host, device)


if __name__ == "__main__":
    sys.exit(main())
