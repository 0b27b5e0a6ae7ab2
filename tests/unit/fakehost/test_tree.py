# SPDX-License-Identifier: Apache-2.0
import collections
import os
import pathlib

import fixtures
import testtools

from tests.fakehost import description, functions, numa, tree
from tests.fakehost.description import Card, Kind
from tests.fakehost.entries import Node
from tests.unit.fakehost import MEMORY

HOSTS = ("small", "dgx", "mixed", "broken")


def card(kind: Kind, address: str, total: int) -> Card:
    data = {"address": address, "kind": str(kind), "netdev": "n", "numa_node": 0, "total_vfs": total}
    return description.parse({"name": "t", "nodes": [{"cores": 1, "memory": 0}], "cards": [data]}).cards[0]


class TestFunctions(testtools.TestCase):
    def test_vfs_are_where_cards_of_their_kind_put_them(self):
        for kind, address, index, expected in (
            (Kind.INFINIBAND, "0000:5e:00.0", 0, "0000:5e:00.1"),
            (Kind.INFINIBAND, "0000:5e:00.0", 6, "0000:5e:00.7"),
            (Kind.INFINIBAND, "0000:5e:00.0", 7, "0000:5e:01.0"),
            (Kind.ROCE, "0000:d8:00.0", 0, "0000:d8:00.2"),
            (Kind.ROCE, "0000:d8:00.1", 0, "0000:d8:01.2"),
            (Kind.ETHERNET, "0000:31:00.0", 0, "0000:31:10.0"),
            (Kind.ETHERNET, "0000:31:00.1", 1, "0000:31:10.3"),
            (Kind.INFINIBAND, "0000:5e:1f.7", 0, "0000:5f:00.0"),
        ):
            self.assertEqual(expected, functions.vf_address(card(kind, address, 8), index))

    def test_nothing_is_given_twice(self):
        for name in HOSTS:
            present = functions.functions(description.load(name))
            nets = tree.nets_of(present)
            guids = [guid for net in nets for guid in (net.identity.node_guid, net.identity.port_guid)]
            for values in ([each.address for each in present], guids, [net.identity.mac for net in nets]):
                self.assertEqual(len(values), len(set(values)), name)

    def test_nodes_have_their_own_numbers(self):
        for name in HOSTS:
            host = description.load(name)
            present = functions.functions(host)
            entries = [
                *tree.fixed_entries(host, present),
                *(e for each in present for e in tree.function_entries(each)),
            ]
            numbers = collections.Counter((e.major, e.minor) for e in entries if isinstance(e, Node))
            self.assertEqual([], [number for number, count in numbers.items() if count > 1], name)


class TestNuma(testtools.TestCase):
    def test_cpu_lists(self):
        for cpus, expected in (((), ""), ((3,), "3"), ((0, 1, 2), "0-2"), ((8, 0, 1, 3), "0-1,3,8")):
            self.assertEqual(expected, numa.cpu_list(cpus))

    def test_cpu_maps(self):
        for cpus, width, expected in (
            ((0, 1), 2, "3"),
            ((0,), 8, "01"),
            ((32,), 33, "1,00000000"),
            ((0, 63), 64, "80000000,00000001"),
        ):
            self.assertEqual(expected, numa.cpu_map(cpus, width))

    def test_a_machines_cpus_are_told_in_their_emulated_sockets(self):
        real = "".join(
            f"processor\t: {cpu}\nphysical id\t: 0\nsiblings\t: 2\ncpu cores\t: 2\nflags\t\t: fpu\n\n"
            for cpu in range(2)
        )
        nodes = description.parse({"name": "t", "nodes": [{"cores": 1, "memory": 0}] * 2}).nodes
        placed = numa.placed_cpuinfo(real, nodes)
        self.assertEqual(
            real.replace("siblings\t: 2", "siblings\t: 1")
            .replace("cores\t: 2", "cores\t: 1")
            .replace("processor\t: 1\nphysical id\t: 0", "processor\t: 1\nphysical id\t: 1"),
            placed,
        )


class TestTree(testtools.TestCase):
    def write(self, name: str) -> pathlib.Path:
        root = pathlib.Path(self.useFixture(fixtures.TempDir(rootdir=MEMORY)).path)
        tree.write(description.load(name), root)
        return root

    def read(self, root: pathlib.Path, path: str) -> str:
        return (root / path).read_text().strip()

    def test_no_link_dangles(self):
        for name in HOSTS:
            root = self.write(name)
            dangling = [path for path in root.rglob("*") if path.is_symlink() and not path.exists()]
            self.assertEqual([], dangling)

    def test_functions_are_where_the_kernel_shows_them(self):
        root = self.write("small")
        vf = root / "sys/bus/pci/devices/0000:5e:00.1"
        self.assertEqual("pci", (vf / "subsystem").resolve().name)
        self.assertEqual("mlx5_core", (vf / "driver").resolve().name)
        self.assertEqual("0000:5e:00.0", (vf / "physfn").resolve().name)
        self.assertEqual(vf.resolve(), (root / "sys/bus/pci/devices/0000:5e:00.0/virtfn0").resolve())
        self.assertEqual(vf.resolve(), (root / "sys/class/net/ibs1v0/device").resolve())
        self.assertEqual(vf.resolve(), (root / "sys/class/infiniband/mlx5_1/device").resolve())
        self.assertEqual("2", self.read(vf / "physfn", "sriov_numvfs"))
        self.assertEqual("231:193", self.read(root, "sys/class/infiniband_verbs/uverbs1/dev"))

    def test_ipoib_addresses_end_in_the_port_guid(self):
        root = self.write("small")
        guid = self.read(root, "sys/class/infiniband/mlx5_1/ports/1/gids/0")[-19:].replace(":", "")
        address = self.read(root, "sys/class/net/ibs1v0/address").replace(":", "")
        self.assertEqual(40, len(address))
        self.assertEqual(guid, address[-16:])

    def test_slices_have_capabilities_with_the_minors_of_the_table(self):
        root = self.write("mixed")
        table = dict(line.split() for line in self.read(root, "proc/driver/nvidia-caps/mig-minors").splitlines())
        for instance in ("gi1", "gi5", "gi5/ci1"):
            access = self.read(root, f"proc/driver/nvidia/capabilities/gpu1/mig/{instance}/access")
            minor = table[f"gpu1/{instance}/access"]
            self.assertIn(f"DeviceFileMinor: {minor}\n", access)
            self.assertTrue((root / f"dev/nvidia-caps/nvidia-cap{minor}").exists())
        self.assertFalse((root / "proc/driver/nvidia/capabilities/gpu0").exists())

    def test_amd_gpus_share_kfd(self):
        root = self.write("mixed")
        self.assertEqual("510:0", self.read(root, "sys/class/kfd/kfd/dev"))
        self.assertEqual(str(32 * 2**30), self.read(root, "sys/bus/pci/devices/0000:83:00.0/mem_info_vram_total"))
        self.assertIn("510 kfd\n", (root / "proc/devices").read_text())

    def test_every_fault_shows(self):
        root = self.write("broken")
        devices = root / "sys/bus/pci/devices"
        self.assertEqual(b"\xff" * 64, (devices / "0000:3c:00.0/config").read_bytes())
        self.assertEqual("0x10de", self.read(devices, "0000:3c:00.0/vendor"))
        self.assertEqual(["0000:3b:00.0", "0000:af:00.0"], sorted(os.listdir(root / "proc/driver/nvidia/gpus")))
        self.assertFalse((root / "dev/nvidia2").exists())
        self.assertTrue((root / "sys/class/drm/card2").exists())
        self.assertFalse((devices / "0000:b0:00.0/driver").exists())
        self.assertFalse((devices / "0000:5e:00.2/driver").exists())
        self.assertFalse((devices / "0000:5e:00.2/net").exists())
        self.assertTrue((devices / "0000:5e:00.3/infiniband_verbs/uverbs3").exists())
        self.assertFalse((root / "dev/infiniband/uverbs3").exists())
        self.assertEqual("1: DOWN", self.read(devices, "0000:d8:00.0/infiniband/mlx5_4/ports/1/state"))

    def test_numa_nodes(self):
        root = self.write("small")
        self.assertEqual("8-15,24-31", self.read(root, "sys/devices/system/node/node1/cpulist"))
        self.assertEqual("21 10", self.read(root, "sys/devices/system/node/node1/distance"))
        self.assertEqual("1", self.read(root, "sys/devices/system/cpu/cpu24/topology/physical_package_id"))
        self.assertEqual("8,24", self.read(root, "sys/devices/system/cpu/cpu24/topology/thread_siblings_list"))
        self.assertEqual(
            "1024", self.read(root, "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages")
        )
