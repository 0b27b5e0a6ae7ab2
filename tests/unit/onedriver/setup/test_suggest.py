# SPDX-License-Identifier: Apache-2.0
"""Test the output of `containerhost config opennebula` with the node's own code."""

import dataclasses
import json
import tomllib

import testtools
from click.testing import CliRunner

from containerhost.inventory import topology
from containerhost.inventory.scan import Inventory, scan
from containerhost.operator.cli import main
from containerhost.operator.suggest.offers import offers
from containerhost.operator.suggest.sizes import sizes
from onedriver.node import options, probes
from onedriver.setup.suggest import templates
from tests.functional_onedock import samples
from tests.unit.containerhost.hosts import shared

HOSTS = ("small", "mixed", "dgx")


def run(*arguments: str) -> str:
    done = CliRunner().invoke(main, ["config", "opennebula", *arguments])
    if done.exit_code:
        raise AssertionError(done.output)
    return done.output


def with_profiles(inventory: Inventory) -> Inventory:
    return Inventory(tuple(dataclasses.replace(device, slice=dataclasses.replace(device.slice, profile="2g.10gb"))
                           if device.slice else device for device in inventory.devices))


class FilterTest(testtools.TestCase):
    def test_probe_reports_exactly_what_is_offered(self) -> None:
        for name in HOSTS:
            inventory = with_profiles(scan(shared(name)))
            found = offers(inventory)
            read = options.read(options.NodeOptions, tomllib.loads(templates.pci_filter(found)))
            reported = list(probes.pci(inventory, (), (), read.pci))
            self.assertEqual(sum(len(offer.devices) for offer in found), len(reported), name)

    def test_short_addresses_stand_beside_each_line(self) -> None:
        text = templates.pci_filter(offers(with_profiles(scan(shared("mixed")))))
        self.assertIn('"15b3:101e:0200",  # roce-vf: d8:00.2 d8:00.3', text)
        self.assertIn('"10de:f20a:0302",  # slice-2g-10gb: 3c:00.0:mig1 3c:00.0:mig2', text)


class TemplatesTest(testtools.TestCase):
    def test_core_finds_a_device_for_every_element(self) -> None:
        for name in HOSTS:
            host = shared(name)
            inventory = with_profiles(scan(host))
            reported = [probes.pci_attributes(device) for device in inventory.devices]
            for size, text in templates.vms(sizes(inventory, topology.read(host)), "debian", "onedock").items():
                template = samples.parse(text)
                self.assertEqual("HYPERVISOR=onedock", template.single["SCHED_REQUIREMENTS"])
                self.assertEqual("debian", template.all("DISK")[0]["IMAGE"])
                self.assertTrue(template.all("PCI"), size)
                for wanted in template.all("PCI"):
                    self.assertTrue(any(wanted.items() <= found.items() for found in reported), (size, wanted))

    def test_memory_is_left_to_the_host(self) -> None:
        host = samples.parse(templates.host(topology.read(shared("small"))))
        self.assertEqual(str(16 << 20), host.single["RESERVED_MEM"])  # of 128 GiB, in KiB


class CommandTest(testtools.TestCase):
    def test_people_and_programs_read_the_same(self) -> None:
        root = str(shared("mixed").root)
        told, text = json.loads(run("--json", "--root", root)), run("--root", root, "--image", "debian")
        begin = text.index("pci_filter")
        self.assertEqual(told["pci_filter"], tomllib.loads(text[begin:text.index("]", begin) + 1])["pci_filter"])
        self.assertEqual(len(told["vms"]), text.count("# for `onetemplate create`"))
        self.assertIn('IMAGE="debian"', text)
        self.assertEqual(["0000:d8:00.1"], told["without_vfs"])
