# SPDX-License-Identifier: Apache-2.0
"""Devices that Cyborg hands out (``accel:device_profile``), through nova's API and its own fake of Cyborg."""

from tests.functional.nova import base  # isort: skip

import copy
from typing import Any

import fixtures
from nova import context as nova_context
from nova.network import model
from nova.tests.fixtures.cyborg import CyborgFixture

from containerhost.devices.model import Device, Kind, NodeUse
from containerhost.inventory.scan import scan
from tests import levels


class AcceleratorTest(base.LxdServers):
    kind = "PCI"

    def setUp(self) -> None:
        self.gpu = next(device for device in scan().devices if device.kind is Kind.GPU)
        self.useFixture(fixtures.MonkeyPatch("nova.tests.fixtures.cyborg.CyborgFixture.bound_arq_list",
                                             self.requests(self.gpu)))
        super().setUp()
        self.cyborg = self.useFixture(CyborgFixture())
        self.offer()

    def requests(self, device: Device) -> list[dict[str, Any]]:
        """As Cyborg answers once it has bound them: each to the same device, for one server at a time."""
        domain, bus, place = device.address.split(":")
        handle = {"domain": domain, "bus": bus, "device": place.split(".")[0], "function": place.split(".")[1]}
        return [arq | {"attach_handle_type": self.kind, "attach_handle_info": handle}
                for arq in copy.deepcopy(CyborgFixture.bound_arq_list)]

    def _configure(self) -> None:
        super()._configure()
        self.flags(device_spec=[], alias=[], group="pci")  # what Cyborg hands out, nova must not

    def offer(self) -> None:
        """Create a provider below the host, as Cyborg's agent does."""
        root = self._get_provider_uuid_by_host(base.HOST)
        made = self.placement.post("/resource_providers", version="1.20",
                                   body={"name": "gpu0", "parent_provider_uuid": root}).body
        entry = {"total": 1, "max_unit": 1}
        self._update_inventory(made["uuid"], {"resource_provider_generation": 0, "inventories": {"FPGA": entry}})
        self._create_trait(self.cyborg.trait)
        self._set_provider_traits(made["uuid"], [self.cyborg.trait])

    def accelerated(self, expected: str = "ACTIVE") -> dict[str, Any]:
        return self.server(self.flavor(accel__device_profile=self.cyborg.dp_name), expected=expected)


class LifeTest(AcceleratorTest):
    def assert_has_it(self, server: Any) -> None:
        self.assertEqual({self.gpu.id: server["id"]}, self.held())
        own = {node.path for node in self.gpu.nodes if node.use is NodeUse.OWN and "nvidia" in node.path}
        self.assertEqual(own, set(self.inside(server, "sh", "-c", "ls -d /dev/nvidia[0-9]*").output.split()))

    def test_it_stays_through_every_power_action(self) -> None:
        server = self.accelerated()
        self.assert_has_it(server)
        acts = [lambda: self._rebuild_server(server, self.image("squashfs")), lambda: self.start_with_the_host(server),
                lambda: self._reboot_server(server, hard=True),
                lambda: (self._stop_server(server), self._start_server(server))]
        # A reboot and a start find it in the same way; FlavorTest does both with devices of a flavor.
        for act in levels.some("power actions with an accelerator", acts, (0, 1)):
            self.notifier.reset()
            act()
            self.assert_has_it(server)
        self._delete_server(server)
        self.assert_nothing_left()

    def start_with_the_host(self, server: Any) -> None:
        """Here nova does not show what Cyborg allocated."""
        name = self.container(server).name
        self.lxd.engine.stop(name, timeout=30, force=True)
        self.driver.resume_state_on_host_boot(nova_context.get_admin_context(), self.instance(server),
                                              model.NetworkInfo(), None)


class RefusedTest(AcceleratorTest):
    kind = "MDEV"

    def test_what_no_container_can_be_given_is_refused_in_words(self) -> None:
        server = self.accelerated(expected="ERROR")
        self.assertIn("has the attach handle type MDEV", " ".join([self.fault(server), *self.reasons(server)]))
        self._delete_server(server)
        self.assert_nothing_left()
