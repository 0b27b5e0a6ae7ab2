# SPDX-License-Identifier: Apache-2.0
import dataclasses
import json
from pathlib import Path

import fixtures
import testtools
from nova import exception, objects
from nova.conf import CONF
from nova.virt import hardware

from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.inventory.scan import Inventory, scan
from nova_lxd_ext.host import cpusets, resources
from tests.unit.nova import hosts

objects.register_all()
NODE_0 = set(range(8)) | set(range(16, 24))
NODE_1 = set(range(8, 16)) | set(range(24, 32))


class ResourcesCase(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.records = Path(self.useFixture(fixtures.TempDir()).path) / "owners"
        self.store = AllocationStore(self.records)

    def configure(self, **options):
        group = options.pop("group", None)
        for name, value in options.items():
            CONF.set_override(name, value, group)
            self.addCleanup(CONF.clear_override, name, group)

    def resources(self, name="small", server=hosts.LXD):
        host = self.useFixture(hosts.FakeHost(name)).host
        return resources.Resources(hosts.Engine(server, hosts.POOL), host, lambda: scan(host), self.store, "default")

    def available(self, *args, **kwargs):
        return self.resources(*args, **kwargs).available("node1")


class TestAvailable(ResourcesCase):
    def test_numbers(self):
        found = self.available()
        self.assertEqual({
            "hypervisor_hostname": "node1", "hypervisor_type": "lxd", "hypervisor_version": 5000002, "vcpus": 32,
            "vcpus_used": 0, "memory_mb": 128 * 1024, "memory_mb_used": 13107, "local_gb": 500, "local_gb_used": 20,
            "disk_available_least": 479,
        }, {name: value for name, value in found.items() if isinstance(value, int) or name.startswith("hypervisor")})
        self.assertEqual([("x86_64", "lxd", "exe"), ("i686", "lxd", "exe")], found["supported_instances"])
        cpu = json.loads(found["cpu_info"])
        self.assertEqual({"cells": 2, "sockets": 2, "cores": 8, "threads": 2}, cpu["topology"])
        self.assertEqual("x86_64", cpu["arch"])
        self.assertIn("avx2", cpu["features"])

    def test_nothing_changes_while_the_host_is_at_rest(self):
        """Nova saves the node's record, through the conductor, after each update that finds a change."""
        found = self.resources()
        before = found.available("node1")
        for name, text in (("uptime", "7300.00 1.00\n"), ("loadavg", "3.25 0.50 0.75 2/300 4711\n")):
            (found._host.root / "proc" / name).write_text(text)
        self.assertEqual(before, found.available("node1"))

    def test_incus_is_a_kind_of_lxd(self):
        found = self.available(server=hosts.INCUS)
        self.assertEqual(("lxd", 6000004), (found["hypervisor_type"], found["hypervisor_version"]))

    def test_nova_takes_it(self):
        """ComputeNode is what the resource tracker makes of the dictionary."""
        node = objects.ComputeNode()
        node.update_from_virt_driver(self.available())
        self.assertEqual(500, node.local_gb)
        self.assertEqual(2, len(objects.NUMATopology.obj_from_db_obj(node.numa_topology).cells))


class TestNuma(ResourcesCase):
    def cells(self, *args):
        return objects.NUMATopology.obj_from_db_obj(self.available(*args)["numa_topology"]).cells

    def test_sets(self):
        """Which CPUs each option leaves for shared and for dedicated use, by node."""
        everything = [(NODE_0, set()), (NODE_1, set())]
        for shared, dedicated, expected in (
                (None, None, everything),
                ("0-31", None, everything),
                ("0-3,16-19", None, [({0, 1, 2, 3, 16, 17, 18, 19}, set()), (set(), set())]),
                (None, "8-11", [(set(), set()), (set(), {8, 9, 10, 11})]),
                ("0-7", "8-15,^9", [(set(range(8)), set()), (set(), {8, 10, 11, 12, 13, 14, 15})])):
            self.configure(group="compute", cpu_shared_set=shared, cpu_dedicated_set=dedicated)
            found = [(cell.cpuset, cell.pcpuset) for cell in self.cells()]
            self.assertEqual(expected, found, (shared, dedicated))

    def test_bad_sets(self):
        for words, shared, dedicated in (
                ("cpu_shared_set names CPUs 32-33, which are not online; this host has 0-31", "30-33", None),
                ("cpu_dedicated_set names CPUs 99", None, "1,99"),
                ("both name CPUs 3-4", "0-4", "3-7")):
            self.configure(group="compute", cpu_shared_set=shared, cpu_dedicated_set=dedicated)
            error = self.assertRaises(exception.Invalid, cpusets.configured, frozenset(range(32)))
            self.assertIn(words, str(error))

    def test_siblings_are_threads_nova_may_use(self):
        self.configure(group="compute", cpu_shared_set="0-1,16", cpu_dedicated_set="2,18")
        first, second = self.cells()
        self.assertEqual([{0, 16}, {1}, {2, 18}], first.siblings)
        self.assertEqual([], second.siblings)
        self.assertTrue(first.has_threads)

    def test_memory_and_pages(self):
        self.configure(reserved_huge_pages=[{"node": "1", "size": "2048", "count": "24"}])
        first, second = self.cells()
        self.assertEqual([65536, 65536], [first.memory, second.memory])
        self.assertEqual([(0, 0), (1, 1)], [(cell.id, cell.socket) for cell in (first, second)])
        ordinary = (64 * 1024 ** 3 - 1024 * 2 * 1024 ** 2) // 4096
        self.assertEqual([(4, ordinary, 0), (2048, 1024, 0), (1048576, 0, 0)], self.pages(first))
        self.assertEqual([(4, ordinary, 0), (2048, 1024, 24), (1048576, 0, 0)], self.pages(second))

    @staticmethod
    def pages(cell):
        return [(page.size_kb, page.total, page.reserved) for page in cell.mempages]

    def test_nova_places_a_server_on_it(self):
        """nova's own fitting, with a pinned server of two CPUs and huge pages."""
        self.configure(group="compute", cpu_dedicated_set="4-7,20-23")
        host = objects.NUMATopology(cells=self.cells())
        cell = objects.InstanceNUMACell(id=0, cpuset=set(), pcpuset={0, 1}, memory=512, cpu_policy="dedicated",
                                        pagesize=2048)
        fitted = hardware.numa_fit_instance_to_host(host, objects.InstanceNUMATopology(cells=[cell]), {})
        self.assertEqual(0, fitted.cells[0].id)
        self.assertTrue(set(fitted.cells[0].cpu_pinning.values()) <= {4, 5, 6, 7, 20, 21, 22, 23})


class TestDevices(ResourcesCase):
    def devices(self, *args):
        return json.loads(self.available(*args)["pci_passthrough_devices"])

    def addresses(self, *args):
        return [device["address"] for device in self.devices(*args)]

    def test_entries(self):
        gpu, vf = self.devices()[:2]
        self.assertEqual({"dev_id": "pci_0000_3b_00_0", "address": "0000:3b:00.0", "vendor_id": "10de",
                          "product_id": "20b0", "label": "label_10de_20b0", "numa_node": 0, "dev_type": "type-PCI",
                          "parent_addr": None}, gpu)
        self.assertEqual({"dev_id": "pci_0000_5e_00_1", "address": "0000:5e:00.1", "vendor_id": "15b3",
                          "product_id": vf["product_id"], "label": f"label_15b3_{vf['product_id']}", "numa_node": 0,
                          "dev_type": "type-VF", "parent_addr": "0000:5e:00.0"}, vf)

    def test_hosts(self):
        """Host -> what is offered: nothing broken, nothing the host itself uses, no GPU that is cut into slices."""
        for name, expected in (
                ("small", ["3b:00.0", "5e:00.1", "5e:00.2", "af:00.0", "d8:00.1", "d8:00.2"]),
                ("broken", ["3b:00.0", "5e:00.1"]),
                ("mixed", ["31:10.0", "31:10.2", "3b:00.0", "4d:00.0", "5e:00.1", "5e:00.2", "5e:00.3", "5e:00.4",
                           "83:00.0", "84:00.0", "9a:00.0", "d8:00.2", "d8:00.3"])):
            self.assertEqual([f"0000:{address}" for address in expected], self.addresses(name), name)

    def test_types(self):
        found = {entry["address"]: entry["dev_type"] for entry in self.devices("mixed")}
        self.assertEqual({"type-PCI", "type-VF"}, set(found.values()))
        self.assertEqual("type-VF", found["0000:d8:00.2"])

    def test_nova_takes_them(self):
        for entry in self.devices("mixed"):
            device = objects.PciDevice.create(None, entry | {"compute_node_id": 1})
            self.assertEqual(entry["numa_node"], device.numa_node)

    def test_records_decide(self):
        """Whose record a device has, and how it looks -> whether it is reported."""
        ours, theirs = (Consumer(driver, "lxd", "c1", "u") for driver in ("nova", "lxdone"))
        for owner, away, health, blocked, reported in (
                (None, False, (), None, True),
                (None, True, (), None, False),
                (None, False, ("no driver is bound to it",), None, False),
                (ours, True, (), None, True),
                (ours, False, ("fallen off the bus",), None, True),
                (ours, False, (), "its GUID could not be reset", False),
                (theirs, True, (), None, False),
                (theirs, False, (), None, False)):
            self.store = AllocationStore(Path(self.useFixture(fixtures.TempDir()).path))
            found = self.one_vf(owner, away, health, blocked)
            self.assertEqual(reported, found == ["0000:5e:00.1"], (owner, away, health, blocked))

    def one_vf(self, owner, away, health, blocked):
        host = self.useFixture(hosts.FakeHost("small")).host
        whole = scan(host).get("0000:5e:00.1")
        device = dataclasses.replace(whole, netdev_away=away, health=health)
        if owner:
            self.store.claim([whole], owner, lambda device: ())
        if blocked:
            self.store.block(whole.id, blocked)
        part = resources.Resources(hosts.Engine(hosts.LXD, hosts.POOL), host, lambda: Inventory((device,)), self.store,
                                   "default")
        return [entry["address"] for entry in json.loads(part.available("node1")["pci_passthrough_devices"])]

    def test_unreadable_records_offer_nothing(self):
        log = self.useFixture(fixtures.FakeLogger())
        found = self.resources()
        device = scan(self.useFixture(hosts.FakeHost("small")).host).get("0000:3b:00.0")
        self.store.claim([device], Consumer("nova", "lxd", "c1", "u"), lambda device: ())
        record, = (path for path in self.records.iterdir() if path.suffix == ".json")
        record.write_text("{")
        self.assertEqual("[]", found.available("node1")["pci_passthrough_devices"])
        self.assertIn("No device of this host is reported to nova", log.output)
