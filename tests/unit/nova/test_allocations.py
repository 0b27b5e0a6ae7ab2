# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import fixtures
import nova.conf
import testtools
from nova.compute.provider_tree import ProviderTree
from oslo_config import fixture as config_fixture
from oslo_utils.fixture import uuidsentinel as uuids

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.errors import DeviceHeld, DeviceNotFound
from containerhost.inventory.scan import Inventory
from nova_lxd_ext import conf
from nova_lxd_ext.hardware import reserved
from nova_lxd_ext.hardware.allocations import HostSlices, Placement
from nova_lxd_ext.hardware.deviceproviders import DeviceProviders
from nova_lxd_ext.hardware.flavor_devices import FlavorDevices, consumer
from nova_lxd_ext.hardware.sliceproviders import provider_name, provider_uuid
from nova_lxd_ext.instance.requested import NOTHING, RequestedResources
from tests.unit.containerhost.hosts import FixedView
from tests.unit.nova import fakes, records
from tests.unit.nova.migkit import GPU_A, GPU_B, LARGE, NODE, SMALL, gpu, host

conf.register()
FIRST, SECOND, BIG = f"{GPU_A}/gi1/ci0", f"{GPU_A}/gi2/ci0", f"{GPU_A}/gi5/ci0"
ONE_D = Consumer("lxdone", "lxd", "one-7", "7")
VIEW = FixedView(host())


def given(**resources: int) -> dict[str, Any]:
    return {provider_uuid(NODE, GPU_A): {"resources": resources}, uuids.root: {"resources": {"VCPU": 1}}}


class ReportClient:
    """Placement, as nova's client shows it."""

    def __init__(self) -> None:
        self.servers: dict[str, Any] = {}

    def get_allocs_for_consumer(self, context: Any, consumer: str) -> dict[str, Any]:
        return {"allocations": self.servers.get(consumer, {})}

    def get_allocations_for_resource_provider(self, context: Any, provider: str) -> Any:
        return SimpleNamespace(allocations={server: found[provider] for server, found in self.servers.items()
                                            if provider in found})


class SlicesTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.records = Path(self.useFixture(fixtures.TempDir()).path) / "owners"
        self.store = AllocationStore(self.records)
        self.client = ReportClient()
        self.slices = HostSlices(NODE, self.store, Placement(lambda: self.client))
        self.server = self.asking(SMALL)
        self.me = consumer(self.server)

    @staticmethod
    def asking(*classes: str) -> Any:
        return records.instance(extra_specs={f"resources:{name}": "1" for name in classes})

    def claim(self, name: str, who: Consumer) -> None:
        self.store.claim([host().get(name)], who, lambda device: ())


class OfTest(SlicesTest):
    def test_as_placement_says(self) -> None:
        self.assertEqual((FIRST,), self.slices.of(self.server, self.me, given(**{SMALL: 1}), VIEW))

    def test_a_flavor_that_asks_for_none_gets_none_and_costs_nothing(self) -> None:
        self.slices = HostSlices(NODE, self.store, Placement(self.fail))
        self.assertEqual((), self.slices.of(records.instance(), self.me, given(**{SMALL: 1}), mock.Mock(spec=[])))

    def test_what_it_holds_while_nova_says_nothing(self) -> None:
        self.claim(SECOND, self.me)
        self.assertEqual((SECOND,), self.slices.of(self.server, self.me, {}, VIEW))

    def test_placement_is_asked_when_it_holds_nothing_or_something_else(self) -> None:
        self.client.servers = {self.server.uuid: given(**{SMALL: 1})}
        self.assertEqual((FIRST,), self.slices.of(self.server, self.me, {}, VIEW))
        self.claim(BIG, self.me)
        self.assertEqual((FIRST,), self.slices.of(self.server, self.me, {}, VIEW))

    def test_other_slices_than_the_flavors_are_refused_in_words(self) -> None:
        for allocations, said in (({}, "none on this host"), (given(**{LARGE: 1}), f"1 of {LARGE} on this host"),
                                  ({provider_uuid("node2", GPU_A): {"resources": {SMALL: 1}}}, "none on this host")):
            self.client.servers = {self.server.uuid: allocations}
            error = self.assertRaises(DeviceNotFound, self.slices.of, self.server, self.me, {}, VIEW)
            self.assertIn(f"requests 1 of {SMALL}", str(error))
            self.assertIn(said, str(error))


class ProvidersTest(SlicesTest):
    def setUp(self) -> None:
        super().setUp()
        self.tree = ProviderTree()
        self.tree.new_root(NODE, uuids.root)

    def update(self, inventory: Inventory | None = None) -> None:
        providers = DeviceProviders(self.store, Placement(lambda: self.client), lambda: inventory or host())
        providers.update(self.tree, NODE)

    def reserved(self) -> dict[str, int]:
        self.update()
        found = self.tree.data(provider_name(NODE, GPU_A)).inventory
        return {name: entry["reserved"] for name, entry in found.items()}

    def test_anothers_slice_is_reserved(self) -> None:
        self.claim(FIRST, ONE_D)
        self.assertEqual({SMALL: 1, LARGE: 0}, self.reserved())

    def test_without_trustworthy_records_all_are_reserved(self) -> None:
        self.claim(FIRST, self.me)
        (record,) = (path for path in self.records.iterdir() if path.suffix == ".json")
        record.write_text("{")
        self.assertEqual({SMALL: 2, LARGE: 1}, self.reserved())
        self.assertIn("All slices of this host are reserved", self.log.output)

    def test_a_vanished_gpu_in_use_stays_reserved(self) -> None:
        self.update()
        self.client.servers = {self.server.uuid: {provider_uuid(NODE, GPU_B): {"resources": {SMALL: 1}}}}
        self.update(host(*(device for device in host().devices if device.address == GPU_A)))
        entry = self.tree.data(provider_name(NODE, GPU_B)).inventory[SMALL]
        self.assertEqual((1, 1), (entry["total"], entry["reserved"]))

    def test_whole_ones_are_shown_where_nova_shows_any(self) -> None:
        config = self.useFixture(config_fixture.Config(nova.conf.CONF))
        sick = host(gpu(GPU_A, health=("Xid 48",)))
        for shown in (True, False):
            config.config(group="pci", device_spec=[json.dumps({"vendor_id": "10de"})], report_in_placement=shown)
            self.update(sick)
            self.assertEqual(shown, self.tree.exists(reserved.provider_name(NODE, GPU_A)))


class PutOnTest(SlicesTest):
    def setUp(self) -> None:
        super().setUp()
        self.rivals: list[tuple[str, Consumer]] = []
        allocator = DeviceAllocator(self.store, lambda: VIEW, fakes.NoPrivileges())
        self.flavor_devices = FlavorDevices(nova.conf.CONF, allocator, self.slices, lambda: records.NODE)
        choose = self.slices.of

        def choose_and_be_overtaken(*arguments: Any) -> tuple[str, ...]:
            chosen = choose(*arguments)
            if self.rivals:
                self.claim(*self.rivals.pop(0))
            return chosen

        self.slices.of = choose_and_be_overtaken

    def attach_all(self, server: Any, **resources: int) -> list[str]:
        requested = RequestedResources.of(allocations=given(**resources)) if resources else NOTHING
        return [part.device.id for part in self.flavor_devices.attach_all(server, requested, VIEW)]

    def test_a_slice_that_another_took_meanwhile_is_replaced(self) -> None:
        self.rivals = [(FIRST, ONE_D)]
        self.assertEqual([SECOND], self.attach_all(self.server, **{SMALL: 1}))
        self.assertEqual({FIRST: ONE_D, SECOND: self.me},
                         {name: record.consumer for name, record in self.store.records().items()})

    def test_when_others_took_all_it_is_refused(self) -> None:
        self.rivals = [(FIRST, ONE_D), (SECOND, ONE_D)]
        self.assertRaises(DeviceHeld, self.attach_all, self.server, **{SMALL: 1})
        self.assertEqual({}, self.store.held_by(self.me))

    def test_the_other_flavors_slice_goes_back_when_the_container_has_it_no_more(self) -> None:
        self.attach_all(self.server, **{SMALL: 1})
        requested = RequestedResources.of(allocations=given(**{LARGE: 1}))
        parts = self.flavor_devices.attach_all(self.asking(LARGE), requested, VIEW)
        self.assertEqual([FIRST, BIG], list(self.store.held_by(self.me)))
        self.flavor_devices.release_unused(self.server, parts, None, VIEW)
        self.assertEqual([BIG], list(self.store.held_by(self.me)))
        self.flavor_devices.release_unused(self.server, (), None, VIEW)
        self.assertEqual({}, self.store.held_by(self.me))
