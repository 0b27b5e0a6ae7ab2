# SPDX-License-Identifier: Apache-2.0
"""The suggested [pci] section, read and matched by nova's own code."""

import dataclasses
import json
from collections.abc import Sequence

import nova.conf
import testtools
from nova.pci import request, whitelist
from nova.pci import utils as pci_utils
from oslo_config import fixture as config_fixture

from containerhost.devices.model import Device
from containerhost.inventory.scan import Inventory, scan
from containerhost.operator.suggest.offers import offers
from nova_lxd_ext.hardware import pci
from nova_lxd_ext.suggest import pcisection
from tests.unit.containerhost.hosts import shared

HOSTS = ("small", "mixed", "dgx", "broken")


class PciSectionCase(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.conf = self.useFixture(config_fixture.Config(nova.conf.CONF))
        self.conf.config(pci_in_placement=True, group="filter_scheduler")
        request.get_alias_from_config.cache_clear()
        self.addCleanup(request.get_alias_from_config.cache_clear)

    def matched(self, section: pcisection.PciSection, devices: Sequence[Device]) -> dict[str, str]:
        """Id of each device of the tracker -> resource class that nova gives it."""
        specs = whitelist.Whitelist([json.dumps(spec) for spec in section.device_specs])
        entries = {device.id: pci._entry(device) for device in devices}
        found = {name: specs.get_devspec(_Entry(entry)) for name, entry in entries.items()}
        return {name: spec.get_tags()["resource_class"] for name, spec in found.items() if spec}

    def aliases(self, *sections: pcisection.PciSection) -> request.Alias:
        """Return what nova reads of the aliases of these hosts, each once."""
        lines = dict.fromkeys(json.dumps(alias) for section in sections for alias in section.aliases)
        self.conf.config(alias=list(lines), group="pci")
        request.get_alias_from_config.cache_clear()
        return request.get_alias_from_config()


class _Entry:
    """Hold what nova's whitelist reads of objects.PciDevice."""

    card_serial_number = None

    def __init__(self, entry: dict[str, str]) -> None:
        self.__dict__.update(entry)


class ParsersTest(PciSectionCase):
    def test_nova_reads_specs_and_aliases_of_every_host(self) -> None:
        for name in HOSTS:
            section = pcisection.section(offers(scan(shared(name))))
            self.assertEqual({alias["name"] for alias in section.aliases}, set(self.aliases(section)))
            self.assertEqual(len(section.device_specs),
                             len(whitelist.Whitelist([json.dumps(spec) for spec in section.device_specs]).specs))

    def test_every_offered_device_matches_and_no_other(self) -> None:
        for name in HOSTS:
            inventory = scan(shared(name))
            found = offers(inventory)
            whole = {device.id: pcisection._placed(offer)["resource_class"] for offer in found
                     for device in offer.devices if "/" not in device.id}
            reported = [device for device in inventory.devices if device.id in whole or device.role == "pf"]
            self.assertEqual(whole, self.matched(pcisection.section(found), reported), name)

    def test_aliases_of_hosts_with_other_models_go_together(self) -> None:
        sections = [pcisection.section(offers(scan(shared(name)))) for name in HOSTS]
        found = self.aliases(*sections)
        self.assertEqual({alias["name"] for section in sections for alias in section.aliases}, set(found))
        self.assertEqual([{"dev_type": "type-VF", "resource_class": "CUSTOM_INFINIBAND_VF"}],
                         found["infiniband-vf"][1])

    def test_gpu_that_is_off_the_bus_has_the_alias_of_its_model(self) -> None:
        devices = scan(shared("small")).devices
        lost = tuple(dataclasses.replace(device, model=None) if device.id == "0000:3b:00.0" else device
                     for device in devices)
        self.assertEqual(pcisection.section(offers(Inventory(devices))), pcisection.section(offers(Inventory(lost))))

    def test_flavor_request_of_each_alias(self) -> None:
        section = pcisection.section(offers(scan(shared("mixed"))))
        self.aliases(section)
        for alias in section.aliases:
            found = request._translate_alias_to_requests(f"{alias['name']}:2", None)
            self.assertEqual((2, alias["resource_class"]), (found[0].count, found[0].spec[0]["resource_class"]))

    def test_ids_that_two_networks_share_are_told_apart_by_card(self) -> None:
        devices = tuple(dataclasses.replace(device, product_id="101e") if device.parent == "0000:5e:00.0" else device
                        for device in scan(shared("mixed")).devices)
        section = pcisection.section(offers(Inventory(devices)))
        addresses = [spec["address"] for spec in section.device_specs if "address" in spec]
        self.assertEqual(["0000:5e:00.0", "0000:d8:00.0"], addresses)
        # Nova reads this machine's sysfs for whether an address is that of a card with VFs.
        self.patch(pci_utils, "is_physical_function", lambda *place: True)
        matched = self.matched(section, devices)
        self.assertEqual("CUSTOM_INFINIBAND_VF", matched["0000:5e:00.1"])
        self.assertEqual("CUSTOM_ROCE_VF", matched["0000:d8:00.2"])

    def test_unknown_numa_node_is_not_required(self) -> None:
        devices = tuple(dataclasses.replace(device, numa_node=None) for device in scan(shared("small")).devices)
        policies = {alias["numa_policy"] for alias in pcisection.section(offers(Inventory(devices))).aliases}
        self.assertEqual({"preferred"}, policies)
