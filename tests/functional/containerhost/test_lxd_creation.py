# SPDX-License-Identifier: Apache-2.0
"""Containers made at the same time have no id of the host in common."""

import concurrent.futures
import itertools
import json
from typing import NamedTuple

from containerhost.engines.lxd.engine import LxdEngine
from tests.functional.containerhost.base import LxdTestCase

MANY = 10


class Ids(NamedTuple):
    start: int
    stop: int


class TestCreation(LxdTestCase):
    def test_many_at_once_have_ids_of_their_own(self):
        names = [f"c{number}" for number in range(MANY)]
        specs = [self.spec(name) for name in names]
        # As many drivers, each with its own connection and lock, like separate processes.
        drivers = [LxdEngine(self.lxd.daemon.client(), locks=self.lxd.daemon.base) for _ in names]
        with concurrent.futures.ThreadPoolExecutor(MANY) as pool:
            list(pool.map(LxdEngine.create, drivers, specs))
        taken = sorted(self.ids(name) for name in names)
        for one, following in itertools.pairwise(taken):
            self.assertTrue(one.stop <= following.start, f"{one} and {following} overlap")
        for name in names:
            self.engine.start(name)

    def ids(self, name: str) -> Ids:
        """The user ids of the host that the container has."""
        config = self.engine.client.instance(name)[0]["config"]
        (entry,) = (entry for entry in json.loads(config["volatile.idmap.next"]) if entry["Isuid"])
        return Ids(entry["Hostid"], entry["Hostid"] + entry["Maprange"])
