#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Resize a hundred times with PCI devices in Placement, live and not, confirmed and reverted.

After each, Placement, nova's PCI devices, the host's records and the container must name the same devices.

    sudo .venv/bin/python bench/placed_resizes.py [--resizes N] [--seed N] [--json]

Two servers change between flavors with and without a GPU and a VF, by a seeded choice, while nova updates its resources
every few seconds in a thread of its own. Ends with status 1 at the first step at which two of the four differ.
"""

import collections
import json
import random
import sys
import threading
import unittest
from typing import Any

import emulated

emulated.enter()

from tests.functional.nova import base, test_placed_devices  # noqa: E402  (nova comes after the entry)

POLL_INTERVAL = 2  # s between two periodic updates of the thread; every check makes one more
COLD = {"lxd__nested_allowed": "true"}


class Resizes(test_placed_devices.PlacedServers):
    resizes = 100
    seed = 1
    done: collections.Counter[str]

    def runTest(self) -> None:
        choice = random.Random(self.seed)
        type(self).done = collections.Counter()
        first, last = self.gpus
        sizes: list[tuple[tuple[str, ...], dict[str, Any]]] = [
            ((), {}), ((base.VF_ALIAS,), {}), ((first,), {}), ((last,), {}), ((first, base.VF_ALIAS), {}),
            ((last, base.VF_ALIAS), {}), ((), COLD), ((first,), COLD), ((last, base.VF_ALIAS), COLD)]
        flavors = [(aliases, self.sized(*aliases, **how)) for aliases, how in sizes]
        servers = {str(server["id"]): server for server in (self.server(flavors[0][1]), self.server(flavors[0][1]))}
        has = dict.fromkeys(servers, flavors[0])
        self.look_all_the_time()
        for _ in range(self.resizes):
            uuid = choice.choice(list(servers))
            busy = {alias for aliases, _ in has.values() for alias in aliases if alias in self.gpus}
            possible = [entry for entry in flavors if not busy & set(entry[0]) and entry != has[uuid]]
            aliases, flavor = choice.choice(possible)
            self.resize(servers[uuid], flavor)
            self.agreed(servers[uuid], aliases)
            if choice.random() < 0.3:
                self.revert(servers[uuid])
                self.done["reverted"] += 1
            else:
                self._confirm_resize(servers[uuid])
                has[uuid] = aliases, flavor
                self.done["confirmed"] += 1
            for other, server in servers.items():
                self.agreed(server, has[other][0])
            print(f"{sum(self.done.values())} of {self.resizes}", file=sys.stderr)
        for server in servers.values():
            self._delete_server(server)
        self.assert_nothing_left()

    def agreed(self, server: Any, aliases: tuple[str, ...]) -> None:
        gpus = [self.gpus[alias] for alias in aliases if alias in self.gpus]
        counts = {"GPU": len(gpus), "NET": len(aliases) - len(gpus)}
        found = self.assert_agreed(server, **{kind: count for kind, count in counts.items() if count})
        self.assertLessEqual(set(gpus), set(found))

    def look_all_the_time(self) -> None:
        """Not by _run_periodics: that waits for a thread of nova's, under a lock of nova's fixture that both want."""
        end = threading.Event()
        errors: list[Exception] = []

        def look() -> None:
            while not end.wait(POLL_INTERVAL):
                try:
                    for compute in self.computes.values():
                        compute.manager.update_available_resource(base.nova_context.get_admin_context())
                except Exception as error:
                    errors.append(error)
        looking = threading.Thread(target=look)
        looking.start()
        self.addCleanup(lambda: self.assertEqual([], errors))
        self.addCleanup(looking.join)
        self.addCleanup(end.set)


def main() -> int:
    chosen = emulated.options(__doc__, resizes=Resizes.resizes, seed=Resizes.seed)
    Resizes.resizes, Resizes.seed = chosen.resizes, chosen.seed
    result = unittest.TextTestRunner(stream=sys.stderr).run(Resizes("runTest"))
    done = dict(Resizes.done)
    print(json.dumps(done) if chosen.json else f"resizes after which all four agreed: {done}")
    return int(not result.wasSuccessful())


if __name__ == "__main__":
    sys.exit(main())
