# SPDX-License-Identifier: Apache-2.0
from types import SimpleNamespace
from typing import Any

import testtools
from nova import objects
from nova.scheduler import weights

from nova_lxd_ext import conf
from nova_lxd_ext.host.resources import PAIRS
from nova_lxd_ext.scheduler import OwnHostWeigher, PairWeigher
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


class PairWeigherTest(testtools.TestCase):
    GPU = objects.InstancePCIRequest(count=1, spec=[{"vendor_id": "10de", "dev_type": "type-PCI"}])
    VF = objects.InstancePCIRequest(count=1, spec=[{"vendor_id": "15b3", "dev_type": "type-VF"}])

    def order(self, *requests: objects.InstancePCIRequest, **pairs: Any) -> list[str]:
        spec = objects.RequestSpec(pci_requests=objects.InstancePCIRequests(requests=list(requests)))
        hosts = [SimpleNamespace(host=name, nodename=name, aggregates=[], stats={PAIRS: count} if count else {})
                 for name, count in pairs.items()]
        found = weights.HostWeightHandler().get_weighed_objects([PairWeigher()], hosts, spec)
        return [each.obj.host for each in found if each.weight == found[0].weight]

    def test_a_server_with_both_goes_where_pairs_are(self) -> None:
        self.assertEqual(["b"], self.order(self.GPU, self.VF, a=0, b="1"))
        two = [objects.InstancePCIRequest(count=2, spec=request.spec) for request in (self.GPU, self.VF)]
        self.assertEqual(["c", "d"], self.order(*two, a=0, b="1", c="2", d="3"))

    def test_a_server_with_one_kind_leaves_pairs_whole(self) -> None:
        self.assertEqual(["a"], self.order(self.GPU, a=0, b="1"))
        self.assertEqual(["a"], self.order(self.VF, a="1", b="2"))

    def test_a_server_without_devices_and_odd_stats_are_indifferent(self) -> None:
        self.assertEqual(["a", "b"], self.order(a=0, b="1"))
        self.assertEqual(["a", "b"], self.order(self.GPU, self.VF, a="many", b=0))
