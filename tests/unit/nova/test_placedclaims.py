# SPDX-License-Identifier: Apache-2.0
import contextlib
from types import SimpleNamespace
from typing import Any
from unittest import mock

import fixtures
import nova.conf
import testtools
from nova import exception, objects
from nova.compute import claims, vm_states
from nova.compute.provider_tree import ProviderTree
from oslo_config import fixture as config_fixture

from nova_lxd_ext import compat
from nova_lxd_ext.hardware import placedclaims
from nova_lxd_ext.hardware.placedclaims import Allocated, Unit, assign
from tests.unit.nova import records

HOST, OLD_HOST = "lxd-1", "lxd-0"
GPU, VF = "CUSTOM_PCI_10DE_20B0", "CUSTOM_PCI_15B3_101C"
NODE, FIRST, SECOND, CARD, ELSEWHERE, SLICES = (f"00000000-0000-4000-8000-00000000000{n}" for n in range(6))
MANAGED = "COMPUTE_MANAGED_PCI_DEVICE"
FAST = "CUSTOM_FAST"


class AssignTest(testtools.TestCase):
    def test_every_unit_gets_a_device_of_its_class_and_traits(self) -> None:
        any_gpu, fast_gpu, vf = Unit(GPU, frozenset()), Unit(GPU, frozenset({FAST})), Unit(VF, frozenset())
        first, fast = Allocated("first", GPU, frozenset()), Allocated("fast", GPU, frozenset({FAST, MANAGED}))
        card = Allocated("card", VF, frozenset())
        table: list[tuple[list[Unit], list[Allocated], tuple[str, ...] | None]] = [
            ([], [], ()),
            ([vf, any_gpu], [first, card], ("card", "first")),
            ([any_gpu, fast_gpu], [fast, first], ("first", "fast")),  # the first unit must pass its device on
            ([vf, vf], [card, card], ("card", "card")),
            ([fast_gpu], [first], None),
            ([any_gpu, any_gpu], [first, card], None),
            ([any_gpu], [], None),
        ]
        for units, allocated, expected in table:
            with self.subTest(units=units, allocated=allocated):
                self.assertEqual(expected, assign(units, allocated))

    def test_many_devices_take_no_exponential_time(self) -> None:
        devices = [Allocated(str(n), GPU, frozenset()) for n in range(64)]
        self.assertEqual(64, len(set(assign([Unit(GPU, frozenset())] * 64, devices) or ())))


class FollowTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.allocations: dict[str, dict[str, int]] = {}
        self.asked: list[str] = []
        tree = ProviderTree()
        tree.new_root(HOST, NODE)
        for name, uuid in (("gpu1", FIRST), ("gpu2", SECOND), ("card", CARD)):
            tree.new_child(name, NODE, uuid=uuid)
            tree.add_traits(uuid, MANAGED)
        tree.new_child("slices", NODE, uuid=SLICES)
        self.tracker = SimpleNamespace(provider_tree=tree, reportclient=self)
        self.report(True)

    def report(self, value: bool) -> None:
        nova.conf.CONF.set_override("report_in_placement", value, group="pci")
        self.addCleanup(nova.conf.CONF.clear_override, "report_in_placement", group="pci")

    def get_allocs_for_consumer(self, context: Any, uuid: str) -> dict[str, Any]:
        self.asked.append(uuid)
        return {"allocations": {provider: {"resources": found} for provider, found in self.allocations.items()}}

    def requests(self, *counts: int, **spec: str) -> list[objects.InstancePCIRequest]:
        ids = {"vendor_id": "10de", "product_id": "20b0"} | spec
        return [objects.InstancePCIRequest(count=count, alias_name="gpu", spec=[dict(ids)]) for count in counts]

    def follow(self, requests: list[objects.InstancePCIRequest], moving: bool = True, state: str = vm_states.ACTIVE
               ) -> list[str | None]:
        claim = SimpleNamespace(context=None, tracker=self.tracker, nodename=HOST, migration="move" if moving else None,
                                instance=records.instance(vm_state=state))
        placedclaims.follow_placement(claim, requests)
        return [request.spec[0].get("rp_uuids") for request in requests]

    def test_requests_of_a_move_name_the_providers_of_this_host(self) -> None:
        self.allocations = {NODE: {"VCPU": 1}, FIRST: {GPU: 1}, SECOND: {GPU: 1}, ELSEWHERE: {GPU: 1},
                            SLICES: {"CUSTOM_MIG_1G_5GB": 1}}
        (found,) = self.follow(self.requests(2))
        self.assertEqual({FIRST, SECOND}, set(str(found).split(",")))
        self.assertEqual({FIRST, SECOND}, set(self.follow(self.requests(1, 1))))
        self.assertEqual({FIRST, SECOND}, set(self.follow(self.requests(1, 1), moving=False,
                                                          state=vm_states.SHELVED_OFFLOADED)))
        self.assertEqual([records.UUID] * 3, self.asked)

    def test_a_provider_of_an_earlier_host_is_forgotten(self) -> None:
        self.allocations = {FIRST: {GPU: 1}}
        self.assertEqual([FIRST], self.follow(self.requests(1, rp_uuids=ELSEWHERE)))
        self.allocations = {NODE: {"VCPU": 1}}
        self.assertEqual([None], self.follow(self.requests(1, rp_uuids=ELSEWHERE)), "the tracker chooses")

    def test_boots_ports_and_hosts_without_devices_in_placement_cost_no_question(self) -> None:
        port = objects.InstancePCIRequest(count=1, alias_name=None, spec=[{"physical_network": "hpc"}])
        self.assertEqual([ELSEWHERE], self.follow(self.requests(1, rp_uuids=ELSEWHERE), moving=False))
        self.assertEqual([None], self.follow([port]))
        self.report(False)
        self.assertEqual([None], self.follow(self.requests(1)))
        self.assertEqual([], self.asked)

    def test_other_devices_than_asked_for_refuse_the_claim(self) -> None:
        self.allocations = {CARD: {VF: 1}}
        error = self.assertRaises(exception.ComputeResourcesUnavailable, self.follow, self.requests(1))
        for words in (f"1 {VF}", f"1 {GPU}", records.UUID):
            self.assertIn(words, error.format_message())


class MovingTest(testtools.TestCase):
    def test_servers_between_sizes_and_of_unclaimed_moves(self) -> None:
        """At its start nova clears the task state of a move that no host has claimed."""
        self.useFixture(config_fixture.Config(nova.conf.CONF)).config(report_in_placement=True, group="pci")
        by_state, by_move, elsewhere = (f"00000000-0000-4000-8000-00000000000{place}" for place in range(3))
        tracker = SimpleNamespace(pci_devs=[
            objects.PciDevice(instance_uuid=uuid, status="allocated") for uuid in (by_state, by_move)])
        moves = [objects.Migration(instance_uuid=uuid) for uuid in (by_move, elsewhere)]
        with mock.patch.object(objects.InstanceList, "get_by_filters",
                               return_value=[records.instance(uuid=by_state)]), \
                mock.patch.object(objects.MigrationList, "get_by_filters", return_value=moves):
            self.assertEqual([by_state, by_move], placedclaims.moving(tracker, HOST))

    def test_only_moves_from_or_to_this_host_are_read(self) -> None:
        """Every update of resources reads them; nova keeps the records of all moves of the cloud."""
        self.useFixture(config_fixture.Config(nova.conf.CONF)).config(report_in_placement=True, group="pci")
        tracker = SimpleNamespace(pci_devs=[objects.PciDevice(instance_uuid=records.UUID, status="allocated")])
        with mock.patch.object(objects.InstanceList, "get_by_filters", return_value=[]), \
                mock.patch.object(objects.MigrationList, "get_by_filters", return_value=[]) as read:
            placedclaims.moving(tracker, HOST)
        self.assertEqual(HOST, read.call_args.args[1]["host"])


class BeforeClaimsTest(testtools.TestCase):
    def test_requests_are_prepared_once_and_before_the_test(self) -> None:
        calls: list[Any] = []
        self.useFixture(fixtures.MonkeyPatch("nova.compute.claims.Claim._claim_test",
                                             lambda this, node, limits=None: calls.append(("test", node))))
        for _ in range(2):
            compat.before_claims(lambda claim, requests: calls.append(requests),
                                 lambda context, instance: contextlib.nullcontext())
        requests = SimpleNamespace(requests=["one"])
        claims.Claim(None, records.instance(), HOST, None, "node", requests)
        self.assertEqual([["one"], ("test", "node")], calls)
