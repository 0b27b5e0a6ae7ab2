# SPDX-License-Identifier: Apache-2.0
"""Test how answers of Placement and flavors become the rows of Horizon's panels."""

import dataclasses

import testtools

from nova_lxd_dashboard.accelerators import REASON, REASONS, Device, Service, devices, requests
from nova_lxd_ext.hardware.pci import Reason

HOST, GPU, NIC = "11111111", "22222222", "33333333"
PROVIDERS = [
    {"uuid": NIC, "name": "node1:Open vSwitch agent", "parent_provider_uuid": HOST, "root_provider_uuid": HOST},
    {"uuid": GPU, "name": "node1_0000:81:00.0", "parent_provider_uuid": HOST, "root_provider_uuid": HOST},
    {"uuid": HOST, "name": "node1", "parent_provider_uuid": None, "root_provider_uuid": HOST},
]
INVENTORIES = {
    HOST: {"VCPU": {"total": 8, "reserved": 0}},
    GPU: {"CUSTOM_GPU": {"total": 1, "reserved": 0}},
    NIC: {"NET_BW_EGR_KILOBIT_PER_SEC": {"total": 1000, "reserved": 0}},
}
HELD = {GPU: {"server": {"resources": {"CUSTOM_GPU": 1}}, "other": {"resources": {"VCPU": 1}}}}


UP = Service(up=True)


def device(reserved: int = 0, service: Service | None = UP) -> Device:
    return Device("id", "node1", "0000:81:00.0", "CUSTOM_GPU", 1, reserved, 0, (), service)


class DevicesTest(testtools.TestCase):
    def test_device_with_its_holder(self) -> None:
        self.assertEqual(
            [Device(f"{GPU}:CUSTOM_GPU", "node1", "0000:81:00.0", "CUSTOM_GPU", 1, 0, 1, ("server",),
                    Service(up=True))],
            devices(PROVIDERS, INVENTORIES, HELD, {"node1": Service(up=True)}, {}))

    def test_reserved_device_with_its_reason(self) -> None:
        providers = [{**PROVIDERS[1], "name": "node1_reserved_0000:81:00.0"}, PROVIDERS[2]]
        inventories = {GPU: {"CUSTOM_GPU": {"total": 1, "reserved": 1}}}
        (found,) = devices(providers, inventories, {}, {"node1": UP}, {GPU: ["CUSTOM_DEVICE_SICK"]})
        self.assertEqual(("0000:81:00.0", "sick"), (found.name, found.health))

    def test_reasons_are_those_of_the_driver(self) -> None:
        self.assertEqual(set(Reason), {REASON + reason.upper() for reason in REASONS})

    def test_free_device(self) -> None:
        found = devices(PROVIDERS, INVENTORIES, {}, {}, {})
        self.assertEqual([(0, ())], [(entry.used, entry.servers) for entry in found])

    def test_order_by_host_and_name(self) -> None:
        providers = [{"uuid": name, "name": name, "parent_provider_uuid": None, "root_provider_uuid": name}
                     for name in ("b", "a")]
        inventories = {name: {"CUSTOM_GPU": {"total": 1}} for name in ("b", "a")}
        self.assertEqual(["a", "b"], [entry.host for entry in devices(providers, inventories, {}, {}, {})])


class HealthTest(testtools.TestCase):
    def test_each(self) -> None:
        expected = {
            "ok": device(),
            "reserved": device(reserved=1),
            "tainted": dataclasses.replace(device(reserved=1), traits=frozenset({"CUSTOM_DEVICE_TAINTED", "HW_X"})),
            "host down": device(service=Service(up=False)),
            "host disabled": device(reserved=1, service=Service(up=True, reason="maintenance")),
        }
        self.assertEqual(list(expected), [entry.health for entry in expected.values()])

    def test_host_without_service_is_down(self) -> None:
        self.assertEqual("host down", device(service=None).health)


class RequestsTest(testtools.TestCase):
    def requests(self, extra_specs: dict[str, str]) -> list[str]:
        return requests(extra_specs, {"CUSTOM_PCI_10DE_20B0": "NVIDIA A100 SXM4 40GB"}.get)

    def test_resource_class_of_a_model(self) -> None:
        self.assertEqual(["NVIDIA A100 SXM4 40GB: 1"], self.requests({"resources:CUSTOM_PCI_10DE_20B0": "1"}))

    def test_pci_aliases(self) -> None:
        self.assertEqual(["gpu: 1", "ib-vf: 2"], self.requests({"pci_passthrough:alias": "gpu, ib-vf:2"}))

    def test_resource_classes_without_ordinary_ones(self) -> None:
        self.assertEqual(["CUSTOM_MIG_1G_10GB: 1", "VGPU: 2"], self.requests({
            "resources:CUSTOM_MIG_1G_10GB": "1", "resources1:VGPU": "2", "resources:VCPU": "0",
            "hw:numa_nodes": "1"}))

    def test_device_profile(self) -> None:
        self.assertEqual(["fpga"], self.requests({"accel:device_profile": "fpga"}))

    def test_nothing(self) -> None:
        self.assertEqual([], self.requests({"lxd:process_limit": "12"}))
