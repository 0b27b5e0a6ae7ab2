# SPDX-License-Identifier: Apache-2.0
"""Devices that break and recover while nova-compute runs, and such as may be used once."""

from tests.functional.nova import base  # isort: skip

import json
from typing import Any

from containerhost.devices.model import Kind
from tests import levels
from tests.fakehost.control import FakeHostControl
from tests.functional import kmsg
from tests.functional.nova.base import GPU_ALIAS


class HealthServers(base.LxdServers):
    def setUp(self) -> None:
        super().setUp()
        self.control = FakeHostControl.from_environment()
        self.gpus = [device.address for device in self.devices_before if device.kind is Kind.GPU]
        self.addCleanup(self.repair)

    def repair(self) -> None:
        for gpu in self.gpus:
            self.control.set_fallen(gpu, False)
        self.control.say(kmsg.LOADED)

    def with_gpu(self, expected: str = "ACTIVE") -> dict[str, Any]:
        return self.server(self.flavor(pci_passthrough__alias=f"{GPU_ALIAS}:1"), expected=expected)

    def known(self) -> set[str]:
        """Addresses of the GPUs in nova's PCI tracker, after a periodic look."""
        self._run_periodics()
        tracked = {device.address for device in self.computes[base.HOST].manager.rt.pci_tracker.pci_devs}
        return tracked & set(self.gpus)

    def providers(self) -> dict[str, str]:
        """GPU -> uuid of what Placement has of it."""
        uuids = {provider["name"].rpartition("_")[2].lower(): provider["uuid"]
                 for provider in self._get_all_providers()}
        return {gpu: uuids[gpu] for gpu in self.gpus if gpu in uuids}

    def inventories(self) -> dict[str, dict[str, Any]]:
        """GPU -> what Placement has of it."""
        return {gpu: entry for gpu, uuid in self.providers().items()
                for entry in self._get_provider_inventory(uuid).values()}

    def reserved_functions(self) -> dict[str, str]:
        """GPU -> why Placement gives it to nobody."""
        traits = {gpu: self._get_provider_traits(uuid) for gpu, uuid in self.providers().items()}
        return {gpu: name for gpu, names in traits.items() for name in names if name.startswith("CUSTOM_DEVICE_")}

    def assert_no_host_tried(self, server: Any) -> None:
        """The scheduler knew."""
        self.assertIn("No valid host", self.fault(server))
        self.assertEqual([], self.reasons(server))


class BreakingTest(HealthServers):

    def test_one_that_breaks_in_use_stays_its_servers_and_then_nobodys(self) -> None:
        server = self.with_gpu()
        (held,) = self.held()
        self.control.set_fallen(held)
        self.assertIn(held, self.known())
        self._delete_server(server)
        self.assertNotIn(held, self.known())
        self.control.set_fallen(held, False)
        self.assertNotIn(held, self.known())  # blocked until the operator frees it
        self.restart_compute_service(self.computes[base.HOST])
        self.assertIn(held, self.known())
        self.assert_nothing_left()


class PlacementTest(HealthServers):
    pci_in_placement = True

    def test_an_operator_sees_in_placement_that_it_is_there_and_why_nobody_gets_it(self) -> None:
        broken, well = self.gpus
        server = self.with_gpu()
        (held,) = self.held()
        for gpu in self.gpus:
            self.control.set_fallen(gpu)
        self.known()
        (free,) = set(self.gpus) - {held}
        self.assertEqual({free: "CUSTOM_DEVICE_SICK"}, self.reserved_functions())
        self._delete_server(server)
        self.known()
        self.assertEqual({free: "CUSTOM_DEVICE_SICK", held: "CUSTOM_DEVICE_UNCLEAN"}, self.reserved_functions())
        self.assertEqual({(1, 1)}, {(entry["total"], entry["reserved"]) for entry in self.inventories().values()})
        self.assertEqual({broken, well}, set(self.inventories()))
        for gpu in self.gpus:
            self.control.set_fallen(gpu, False)
        self.restart_compute_service(self.computes[base.HOST])  # it cleans the device that it could not clean before
        self.known()
        self.assertEqual({}, self.reserved_functions())
        self.assertEqual({gpu: 0 for gpu in self.gpus},
                         {gpu: entry["reserved"] for gpu, entry in self.inventories().items()})
        self.assert_nothing_left()


class OneTimeUseTest(HealthServers):
    pci_in_placement = True

    def _configure(self) -> None:
        super()._configure()
        gpu = next(device for device in self.devices_before if device.kind is Kind.GPU)
        spec = {"vendor_id": gpu.vendor_id, "product_id": gpu.product_id, "one_time_use": "true"}
        self.flags(device_spec=[json.dumps(spec)], group="pci")

    def reserved(self) -> dict[str, int]:
        """GPU -> how many of it are reserved in Placement."""
        return {gpu: entry["reserved"] for gpu, entry in self.inventories().items()}

    @levels.exhaustive("units show it; PlacementTest has reserved devices")
    def test_a_used_device_is_reserved_whatever_happens_to_it(self) -> None:
        server = self.with_gpu()
        (used,) = self.held()
        (fresh,) = set(self.gpus) - {used}
        self._delete_server(server)
        expected = {used: 1, fresh: 0}
        self.known()
        self.assertEqual(expected, self.reserved())
        self.control.set_fallen(used)
        self.known()
        self.assertEqual(expected, self.reserved())
        self.restart_compute_service(self.computes[base.HOST])
        self.known()
        self.assertEqual(expected, self.reserved())
        self.control.remove(used)
        self.known()
        self.control.restore(used)
        self.control.set_fallen(used, False)
        self.known()
        self.assertEqual(expected, self.reserved())
        second, third = self.with_gpu(), self.with_gpu(expected="ERROR")
        self.assertEqual({fresh: second["id"]}, self.held())
        self.assert_no_host_tried(third)
        for one in (second, third):
            self._delete_server(one)
        self.known()
        self.assertEqual({used: 1, fresh: 1}, self.reserved())
