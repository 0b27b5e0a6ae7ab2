# SPDX-License-Identifier: Apache-2.0
"""Placement, nova's PCI tracker, the host's records and the container name the same devices after every move."""

from tests.functional.nova import twohosts  # isort: skip (decides how nova runs)

import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar
from unittest import mock

from nova import context as nova_context
from nova import objects
from nova.compute import manager, rpcapi, vm_states

from containerhost.devices.model import Device, Kind
from containerhost.inventory.scan import scan
from tests import levels
from tests.functional.nova import base
from tests.functional.nova.base import VF_ALIAS
from tests.functional.nova.glance import Uploads
from tests.functional.nova.twohosts import FIRST, SECOND
from tests.waiting import await_that

FIRST_GPU, LAST_GPU = "gpu-first", "gpu-last"
CHOSEN_VF = "vf-chosen"
OWN = "own"
WAYS = ({}, {"lxd__nested_allowed": "true"})  # of a resize: live; while the server is off


class Agreement(base.LxdServers):
    pci_in_placement = True

    def placed_for(self, consumer: str) -> list[str]:
        """Addresses of the PCI functions, for a VF that of its card, that Placement allocated; sorted.

        :param consumer: uuid of a server or a migration
        """
        names = {provider["uuid"]: provider["name"] for provider in self._get_all_providers()}
        found = []
        for uuid, allocation in self._get_allocations_by_server_uuid(consumer).items():
            for name, count in allocation["resources"].items():
                if name.startswith("CUSTOM_PCI_"):
                    found += [names[uuid].rpartition("_")[2].lower()] * count
        return sorted(found)

    def recorded(self, server: Mapping[str, Any]) -> list[str]:
        """Ids of the devices that the host's records give the server; sorted."""
        return sorted(device for device, uuid in self.held().items() if uuid == server["id"])

    def run_inside(self, server: Mapping[str, Any], *command: str) -> base.Inside:
        return self.inside(server, *command)

    def assert_agreed(self, server: Mapping[str, Any], **counts: int) -> list[str]:
        """Return the devices' addresses; all four name the same, now and after nova's next update."""
        held = self._assert_agreed(server, **counts)
        self._run_periodics()
        self.assertEqual(held, self._assert_agreed(server, **counts))
        return held

    def _assert_agreed(self, server: Mapping[str, Any], **counts: int) -> list[str]:
        instance = self.instance(server)
        claimed = list(instance.get_pci_devices())
        if instance.vm_state == vm_states.RESIZED:  # the server has those of both sizes
            move = instance.migration_context
            uuid = objects.Migration.get_by_id(nova_context.get_admin_context(), move.migration_id).uuid
            self.assertEqual(self.placed_for(uuid), functions(move.old_pci_devices or ()), "what it had")
            claimed = list(move.new_pci_devices or ())
        self.assertEqual(self.placed_for(server["id"]), functions(claimed), "Placement and nova's PCI devices")
        held = self.recorded(server)
        self.assertEqual(held, sorted(device.address for device in claimed),
                         "the host's records and nova's PCI devices")
        devices = [scan().get(device) for device in held]
        self.assert_sees(server, devices)
        kinds = [device.kind.name for device in devices]
        self.assertEqual(counts, {name: kinds.count(name) for name in sorted(set(kinds))})
        return held

    def assert_sees(self, server: Mapping[str, Any], devices: list[Device]) -> None:
        """The container has these GPUs' nodes and no others, and as many interfaces."""
        own = {node.path for device in devices if device.kind is Kind.GPU for node in device.nodes if node.use == OWN}
        every = {node.path for device in self.devices_before if device.kind is Kind.GPU
                 for node in device.nodes if node.use == OWN}
        seen = self.run_inside(server, "find", "/dev", "-type", "c").output.split()
        self.assertEqual(own, every & set(seen), "the host's records and the container's nodes")
        names = self.run_inside(server, "ls", "/sys/class/net").output.split()
        self.assertEqual(sum(device.kind is Kind.NET for device in devices),
                         sum(name.startswith("ib") for name in names), "interfaces")


def functions(devices: Iterable[objects.PciDevice]) -> list[str]:
    return sorted(device.parent_addr or device.address for device in devices)


class PlacedServers(Agreement):
    """Aliases for each of the two GPUs by a trait, which nova's PCI tracker does not look at."""

    options: ClassVar[Mapping[tuple[str | None, str], Any]] = {(None, "allow_resize_to_same_host"): True}

    def _configure(self) -> None:
        super()._configure()
        gpus = [device for device in self.devices_before if device.kind is Kind.GPU]
        vf = next(device for device in self.devices_before if self._is_ib_vf(device))
        self.gpus = dict(zip((FIRST_GPU, LAST_GPU), (gpu.address for gpu in gpus), strict=True))
        ids = {"vendor_id": gpus[0].vendor_id, "product_id": gpus[0].product_id}
        traits = {name: "CUSTOM_" + name.upper().replace("-", "_") for name in self.gpus}
        specs = [{"vendor_id": vf.vendor_id, "product_id": vf.product_id},
                 *({"address": address, "traits": traits[name]} for name, address in self.gpus.items())]
        aliases = [{"name": name, **ids, "traits": trait, "device_type": "type-PCI"} for name, trait in traits.items()]
        self.flags(device_spec=[json.dumps(spec) for spec in specs],
                   alias=[*base.CONF.pci.alias, *map(json.dumps, aliases)], group="pci")

    def sized(self, *aliases: str, **how: Any) -> str:
        """Id of a flavor with one device of each alias."""
        if aliases:
            how["pci_passthrough__alias"] = ",".join(f"{name}:1" for name in aliases)
        return self.flavor(**{"memory_mb": 96} | how)

    def end(self, server: Mapping[str, Any]) -> None:
        self._delete_server(server)
        self.assert_nothing_left()


@levels.exhaustive("one that is reverted stays", tests=("test_resize_claims_the_devices_that_placement_chose",))
class PlacedResizeTest(PlacedServers):
    def tries(self, *gate: tuple[int, int]) -> list[tuple[dict[str, str], str]]:
        """Return ways of a resize with the GPU to try in each.

        :param gate: those of the gate: index of WAYS, index of the GPU
        """
        names = list(self.gpus)
        return levels.budget(gate=[(WAYS[way], names[gpu]) for way, gpu in gate],
                             exhaustive=list(itertools.product(WAYS, names)))

    def test_resize_claims_the_devices_that_placement_chose(self) -> None:
        for how, name in self.tries((0, 1)):
            with self.subTest(name, **how):
                server = self.server(self.sized())
                self.resize(server, self.sized(name, VF_ALIAS, **how))
                self.assertIn(self.gpus[name], self.assert_agreed(server, GPU=1, NET=1))
                self._confirm_resize(server)
                self.assertIn(self.gpus[name], self.assert_agreed(server, GPU=1, NET=1))
                self.resize(server, self.sized())
                self.assert_agreed(server)
                self._confirm_resize(server)
                self.assert_agreed(server)
                self.end(server)

    def test_reverted_resize_has_the_devices_it_had(self) -> None:
        for how, before in self.tries((1, 0)):
            (after,) = set(self.gpus) - {before}
            with self.subTest(before, **how):
                server = self.server(self.sized(before, VF_ALIAS))
                held = self.assert_agreed(server, GPU=1, NET=1)
                self.resize(server, self.sized(after, **how))
                self.assertEqual([self.gpus[after]], self.assert_agreed(server, GPU=1))
                self.revert(server)
                self.assertEqual(held, self.assert_agreed(server, GPU=1, NET=1))
                self.end(server)

    @levels.exhaustive("a resize that is confirmed and one that is reverted remain; units have the claims")
    def test_an_update_in_the_middle_of_a_resize_allocates_nothing_more(self) -> None:
        """Nova heals what it takes for missing: the device of the other size, which the move has or will have."""
        methods = ("prep_resize", "_revert_allocation")
        for method in levels.budget(gate=(levels.turn(methods),), exhaustive=methods):
            with self.subTest(method), self.updated_before(method):
                server = self.server(self.sized(VF_ALIAS))
                self.resize(server, self.sized())
                self.assert_agreed(server)
                self.revert(server)
                self.assert_agreed(server, NET=1)
                self.resize(server, self.sized(FIRST_GPU))
                self._confirm_resize(server)
                self.assert_agreed(server, GPU=1)
                self.end(server)

    @levels.exhaustive("a resize that is confirmed and one that is reverted remain; units have the claims")
    def test_start_ends_a_resize_that_was_lost_before_its_claim(self) -> None:
        """Nova would allocate the GPU that the server has a second time, and not start."""
        for ended in (False, True):
            server = self.server(self.sized(FIRST_GPU))
            with mock.patch.object(rpcapi.ComputeAPI, "prep_resize") as lost:
                self.api.post_server_action(server["id"], {"resize": {"flavorRef": self.sized(LAST_GPU)}})
                await_that(lambda lost=lost: lost.called, "the scheduler has allocated")
            if ended:
                self._delete_server(server)
            self.restart_compute_service(self.computes[base.HOST])
            if not ended:
                self.assertEqual([self.gpus[FIRST_GPU]], self.assert_agreed(server, GPU=1))
                self._delete_server(server)
            self.assert_nothing_left()

    @contextlib.contextmanager
    def updated_before(self, method: str) -> Iterator[None]:
        original = getattr(manager.ComputeManager, method)

        def call(compute: manager.ComputeManager, *args: Any, **kwargs: Any) -> Any:
            compute.update_available_resource(nova_context.get_admin_context())
            return original(compute, *args, **kwargs)
        with mock.patch.object(manager.ComputeManager, method, call):
            yield

    @levels.exhaustive("a resize that is confirmed and one that is reverted remain; units have the claims")
    def test_a_server_unshelved_after_a_resize_has_what_placement_chose(self) -> None:
        """A resize leaves nova's record of the request and that of the server with different ids."""
        self.flags(shelved_offload_time=0)
        Uploads(self.glance)
        for name in levels.budget(gate=[LAST_GPU], exhaustive=list(self.gpus)):
            with self.subTest(name):
                server = self.server(self.sized())
                self.resize(server, self.sized(name))
                self._confirm_resize(server)
                self._shelve_server(server)
                self._run_periodics()  # the scheduler learns that the device is free
                self._unshelve_server(server)
                self.assertEqual([self.gpus[name]], self.assert_agreed(server, GPU=1))
                self.end(server)

    @levels.exhaustive("one GPU of a resize remains")
    def test_another_server_gets_the_device_that_placement_has_left(self) -> None:
        for name in levels.budget(gate=[LAST_GPU], exhaustive=list(self.gpus)):
            with self.subTest(name):
                first = self.server(self.sized())
                self.resize(first, self.sized(name))
                second = self.server(self.sized(base.GPU_ALIAS))
                self._confirm_resize(first)
                held = {*self.assert_agreed(first, GPU=1), *self.assert_agreed(second, GPU=1)}
                self.assertEqual(set(self.gpus.values()), held)
                self._rebuild_server(second, self.image())
                self.assert_agreed(second, GPU=1)
                self._delete_server(second)
                self.end(first)

    @levels.exhaustive("a resize that is confirmed and one that is reverted remain; units have the claims")
    def test_resize_follows_the_tracker_where_the_scheduler_allocates_no_devices(self) -> None:
        self.flags(pci_in_placement=False, group="filter_scheduler")
        server = self.server(self.sized())
        self.resize(server, self.sized(base.GPU_ALIAS))
        self._confirm_resize(server)
        self._run_periodics()
        self.assert_agreed(server, GPU=1)
        self.end(server)


class PlacedMoves(Agreement, twohosts.TwoHosts):
    """The first host has one VF, the second the others, on two cards; a trait says which card is to be chosen there."""

    chosen: str

    def setUp(self) -> None:
        super().setUp()
        self.the_server = self.server(self.flavor(memory_mb=96, pci_passthrough__alias=f"{CHOSEN_VF}:1"), host=FIRST)
        self.before = self.assert_agreed(self.the_server, NET=1)

    def _configure(self) -> None:
        self.vfs = [device for device in self.devices_before if self._is_ib_vf(device)]
        super()._configure()
        alias = {"name": CHOSEN_VF, "vendor_id": self.vfs[0].vendor_id, "product_id": self.vfs[0].product_id,
                 "device_type": "type-VF", "traits": "CUSTOM_CHOSEN"}
        self.flags(alias=[*base.CONF.pci.alias, json.dumps(alias)], group="pci")

    def configure_host(self, host: str) -> None:
        super().configure_host(host)
        here = self.vfs[:1] if host == FIRST else self.vfs[1:]
        specs = [{"address": vf.address} | ({"traits": "CUSTOM_CHOSEN"} if self.is_chosen(host, vf) else {})
                 for vf in here]
        self.flags(device_spec=[json.dumps(spec) for spec in specs], group="pci")

    def is_chosen(self, host: str, vf: Device) -> bool:
        return host == FIRST or str(vf.parent).startswith(self.chosen)

    def recorded(self, server: Mapping[str, Any]) -> list[str]:
        return sorted(self.held_on(self.host_of(server)))

    def run_inside(self, server: Mapping[str, Any], *command: str) -> base.Inside:
        return self.run_on(self.host_of(server), server, *command)

    def assert_is_second(self) -> None:
        self.assertEqual(SECOND, self.host_of(self.the_server))
        (address,) = self.assert_agreed(self.the_server, NET=1)
        self.assertTrue(address.startswith(self.chosen.rpartition(".")[0]), address)

    def end(self) -> None:
        self._delete_server(self.the_server)
        self.assert_both_empty()

    def test_migrated_and_confirmed(self) -> None:
        self._migrate_server(self.the_server)
        self.assert_is_second()
        self._confirm_resize(self.the_server)
        self.assert_is_second()
        self.end()

    @levels.exhaustive("a reverted resize and a confirmed move remain")
    def test_migrated_and_reverted(self) -> None:
        self._migrate_server(self.the_server)
        self.assert_is_second()
        self.revert(self.the_server)
        self.assertEqual(self.before, self.assert_agreed(self.the_server, NET=1))
        self.end()

    def test_evacuated(self) -> None:
        first = self.computes[FIRST]
        first.stop()
        self.admin_api.put_service_force_down(first.service_ref.uuid, True)
        self._evacuate_server(self.the_server, expected_host=SECOND)
        self._start_server(self.the_server)
        del self.computes[FIRST]  # its periodic tasks
        (address,) = self.recorded(self.the_server)
        self.assertTrue(address.startswith(self.chosen.rpartition(".")[0]), address)
        self.computes[FIRST] = first
        self.restart_compute_service(first)
        self.admin_api.put_service_force_down(first.service_ref.uuid, False)
        self.assert_is_second()
        self.end()


@levels.exhaustive("the other card is chosen in the same way")
class FirstCardTest(PlacedMoves):
    chosen = "0000:5e:00.0"


@levels.exhaustive("a move to another host claims as a resize does; units have the claims",
                   tests=("test_migrated_and_confirmed", "test_evacuated"))
class SecondCardTest(PlacedMoves):
    chosen = "0000:d8:00.0"


del PlacedMoves  # it has tests, for its subclasses
