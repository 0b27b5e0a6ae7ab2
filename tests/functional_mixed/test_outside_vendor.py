# SPDX-License-Identifier: Apache-2.0
"""An accelerator whose vendor plug-in is another package (examples/vendor), under every driver and engine."""

from tests.functional.nova import base  # isort: skip

import json
from typing import Any

import testtools

from containerhost.devices.model import Device
from containerhost.inventory.scan import scan
from onedriver.pciaddress import from_device_id
from tests import levels
from tests.fakehost.control import FakeHostControl
from tests.functional_one.test_actions import CLEANUP, ActionsCase
from tests.functional_one.vms import Machine
from tests.functional_onedock.base import OnedockCase
from tests.outsidevendor import OutsideVendor

FIRST, SECOND = "0000:c1:00.0", "0000:c2:00.0"
NODES = {FIRST: "/dev/exampleaccel/accel0", SECOND: "/dev/exampleaccel/accel1"}
CONTROL = "/dev/exampleaccel/control"
LISTED = "find /dev/exampleaccel -type c 2>/dev/null || true"


class OutsideCase(testtools.TestCase):
    def setUp(self) -> None:
        self.useFixture(OutsideVendor())
        self.control = FakeHostControl.from_environment()
        super().setUp()

    def resets(self) -> int:
        return sum(self.control.resets().count(address) for address in (FIRST, SECOND))


class NovaTest(OutsideCase, base.LxdServers):
    def _configure(self) -> None:
        super()._configure()
        ids = {"vendor_id": "c0de", "product_id": "0001"}
        alias = ids | {"name": "accel", "device_type": "type-PCI"}
        self.flags(device_spec=[json.dumps(ids)], alias=[json.dumps(alias)], group="pci")

    def listed(self, server: dict[str, Any]) -> set[str]:
        return set(self.inside(server, "sh", "-c", LISTED).output.split())

    def test_flavor_brings_it_whole_and_it_is_reset_after_use(self) -> None:
        servers = [self.server(self.flavor(pci_passthrough__alias="accel:1")) for _ in range(2)]
        held = {uuid: device for device, uuid in self.held().items()}
        self.assertEqual({FIRST, SECOND}, set(held.values()))
        for server in servers:
            self.assertEqual({NODES[held[server["id"]]], CONTROL}, self.listed(server))
        before = self.resets()
        for server in servers:
            self._delete_server(server)
        self.assertEqual(before + 2, self.resets())
        self.assert_nothing_left()


class OpenNebulaContract:
    """Under either of OpenNebula's drivers."""

    def listed(self, machine: Machine) -> set[str]:
        return set(self.inside(machine, "sh", "-c", LISTED).split())

    def test_it_comes_whole_and_is_reset_after_use(self) -> None:
        first, second = self.accelerators()
        for device in (first, second):
            self.assertIn(f'ADDRESS="{from_device_id(device.id).address}"', self.node.probe("host/system").out)
        before = self.resets()
        machine = self.deployed(Machine(devices=(first,)))
        self.assertEqual({NODES[FIRST], CONTROL}, self.listed(machine))
        more = machine.changed(devices=(first, second), attach="pci")
        self.ok("attach_nic", more, machine.mac(9), "-", "-", "dummy", "one-1-9")
        self.assertEqual({*NODES.values(), CONTROL}, self.listed(machine))
        self.ok("detach_nic", more, machine.mac(9))
        self.assertEqual({NODES[FIRST], CONTROL}, self.listed(machine))
        self.assertEqual(before + 1, self.resets())
        self.ok("cancel", machine, lcm=CLEANUP)
        self.assertEqual(before + 2, self.resets())

    def accelerators(self) -> tuple[Device, Device]:
        inventory = scan()
        return inventory.get(FIRST), inventory.get(SECOND)


@levels.exhaustive("nova has it on LXD, onedock by OpenNebula's actions",
                   tests=("test_it_comes_whole_and_is_reset_after_use",))
class LxdoneTest(OpenNebulaContract, OutsideCase, ActionsCase):
    pass


@levels.exhaustive("nova has it", tests=("test_it_comes_whole_and_is_reset_after_use",))
class OnedockTest(OpenNebulaContract, OutsideCase, OnedockCase):
    pass
