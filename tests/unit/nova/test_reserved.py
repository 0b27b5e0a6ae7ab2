# SPDX-License-Identifier: Apache-2.0
import dataclasses
import json

import testtools
from nova.compute.provider_tree import ProviderTree
from oslo_config import fixture as config_fixture
from oslo_utils.fixture import uuidsentinel as uuids

from containerhost.allocation.store import Allocation, Consumer
from containerhost.devices.model import Device, Kind, Role
from nova_lxd_ext.hardware import pci, reserved
from nova_lxd_ext.hardware.devicespec import CONF, one_time_use
from nova_lxd_ext.hardware.pci import Reason
from tests.unit.nova.migkit import GPU_A, GPU_B, NODE, gpu, host, part

CARD = "0000:81:00.0"
SERVER, OTHER = Consumer("nova", "lxd", "instance-1", "u1"), Consumer("lxdone", "lxd", "one-7", "7")
SICK = {"health": ("Xid 48",)}


def vf(number: int, **changes: object) -> Device:
    address = f"{CARD[:-1]}{number}"
    return dataclasses.replace(gpu(address), id=address, kind=Kind.NET, vendor_id="15b3", product_id="101c",
                               role=Role.VF, parent=CARD, **changes)


def record(device: Device, owner: Consumer, blocked: str | None = None) -> Allocation:
    return Allocation(device.id, owner, blocked=blocked)


class WhichTest(testtools.TestCase):
    def test_each_is_reported_or_reserved_for_a_reason(self) -> None:
        well, sick = gpu(GPU_A), gpu(GPU_A, **SICK)
        for device, found, expected in (
                (well, None, None), (well, record(well, SERVER), None), (sick, record(sick, SERVER), None),
                (sick, None, Reason.SICK), (well, record(well, OTHER), Reason.ELSEWHERE),
                (well, record(well, SERVER, "still in use"), Reason.UNCLEAN),
                (gpu(GPU_A, host_use=("it is the console",)), None, Reason.ELSEWHERE)):
            records = {} if found is None else {device.id: found}
            with self.subTest(expected=expected, record=found):
                self.assertEqual([] if expected else [GPU_A],
                                 [entry["address"] for entry in pci.passthrough(host(device), records)])
                self.assertEqual([expected] if expected else [],
                                 [reason for _, _, reason in pci.reserved(host(device), records)])

    def test_a_gpu_that_is_cut_is_no_whole_one(self) -> None:
        self.assertEqual([], pci.reserved(host(gpu(GPU_A, **SICK), part(GPU_A, 1)), {}))


class ProvidersTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.config = self.useFixture(config_fixture.Config(CONF))
        self.configure({"vendor_id": "10de"}, {"vendor_id": "15b3", "resource_class": "fast-net"})
        self.tree = ProviderTree()
        self.tree.new_root(NODE, uuids.root)

    def configure(self, *specs: dict[str, str]) -> None:
        self.config.config(group="pci", device_spec=[json.dumps(spec) for spec in specs])

    def update(self, *devices: Device) -> dict[str, tuple[dict[str, tuple[int, int]], set[str]]]:
        """Return what is reserved, and why, by card."""
        reserved.update(self.tree, NODE, pci.reserved(host(*devices), {}))
        found = {}
        for uuid in self.tree.get_provider_uuids(NODE)[1:]:
            data = self.tree.data(uuid)
            totals = {name: (entry["total"], entry["reserved"]) for name, entry in data.inventory.items()}
            found[data.name.removeprefix(f"{NODE}_reserved_")] = (totals, data.traits)
        return found

    def test_a_sick_gpu_is_there_and_reserved_until_it_is_well(self) -> None:
        expected = {GPU_A: ({"CUSTOM_PCI_10DE_20B0": (1, 1)}, {"CUSTOM_DEVICE_SICK"})}
        for _ in range(2):
            self.assertEqual(expected, self.update(gpu(GPU_A, **SICK), gpu(GPU_B)))
        self.assertEqual({}, self.update(gpu(GPU_A), gpu(GPU_B)))

    def test_functions_of_one_card_are_one_provider(self) -> None:
        expected = {CARD: ({"CUSTOM_FAST_NET": (2, 2)}, {"CUSTOM_DEVICE_SICK", "CUSTOM_DEVICE_USED_ELSEWHERE"})}
        self.assertEqual(expected, self.update(vf(1, **SICK), vf(2), vf(3, netdev_away=True)))
        self.assertEqual({CARD: ({"CUSTOM_FAST_NET": (1, 1)}, {"CUSTOM_DEVICE_SICK"})},
                         self.update(vf(1, **SICK), vf(2), vf(3)))

    def test_what_nova_does_not_keep_in_placement_is_not_shown(self) -> None:
        self.configure({"vendor_id": "15b3", "physical_network": "ib"})
        self.assertEqual({}, self.update(gpu(GPU_A, **SICK), vf(1, **SICK)))

    def test_one_for_one_use_is_reported_and_not_reserved(self) -> None:
        self.config.config(group="pci", report_in_placement=True)
        self.configure({"vendor_id": "10de", "one_time_use": "true"})
        sick = gpu(GPU_A, **SICK)
        self.assertEqual([GPU_A], [entry["address"] for entry in pci.passthrough(host(sick), {}, one_time_use)])
        self.assertEqual({}, self.update(sick))

    def test_providers_of_others_stay(self) -> None:
        self.tree.new_child(f"{NODE}_{GPU_A}", NODE)
        self.update(gpu(GPU_A, **SICK))
        self.update(gpu(GPU_A))
        self.assertTrue(self.tree.exists(f"{NODE}_{GPU_A}"))
