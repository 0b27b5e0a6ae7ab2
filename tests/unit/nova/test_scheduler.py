# SPDX-License-Identifier: Apache-2.0
from types import SimpleNamespace
from typing import Any

import testtools
from nova import objects
from nova.scheduler import weights

from nova_lxd_ext import conf
from nova_lxd_ext.scheduler import OwnHostWeigher
from tests.unit.nova import records

conf.register()
OTHER = "0b5f7c1e-1d7c-4f0e-8a55-6f1f5a0f2b02"


def host(name: str, *servers: str, **aggregate: str) -> Any:
    """A host as nova's scheduler knows it: nova/scheduler/host_manager.py, HostState."""
    aggregates = [objects.Aggregate(name="a", metadata=aggregate)] if aggregate else []
    return SimpleNamespace(host=name, nodename=name, instances={uuid: None for uuid in servers}, aggregates=aggregates)


class OwnHostWeigherTest(testtools.TestCase):
    def best(self, *hosts: Any) -> str:
        spec = objects.RequestSpec(instance_uuid=records.UUID)
        return weights.HostWeightHandler().get_weighed_objects([OwnHostWeigher()], list(hosts), spec)[0].obj.host

    def test_the_servers_own_host_wins(self) -> None:
        self.assertEqual("b", self.best(host("a", OTHER), host("b", OTHER, records.UUID), host("c")))

    def test_an_aggregate_may_turn_it_round(self) -> None:
        self.assertEqual("a", self.best(host("a"), host("b", records.UUID, own_host_weight_multiplier="-1")))

    def test_a_new_server_has_none(self) -> None:
        found = weights.HostWeightHandler().get_weighed_objects(
            [OwnHostWeigher()], [host("a", OTHER), host("b")], objects.RequestSpec(instance_uuid=records.UUID))
        self.assertEqual({0.0}, {weighed.weight for weighed in found})
