# SPDX-License-Identifier: Apache-2.0
import dataclasses

import testtools

from containerhost.inventory import topology
from containerhost.inventory.scan import Inventory, scan
from containerhost.operator.suggest.sizes import Size, sizes
from tests.unit.containerhost.hosts import shared

GIB = 1 << 30


def found(name: str) -> dict[str, Size]:
    host = shared(name)
    return {size.name: size for size in sizes(scan(host), topology.read(host))}


class SizesTest(testtools.TestCase):
    def test_training_node_is_used_up_by_its_gpus(self) -> None:
        sizes_of = found("dgx")
        gpu = "gpu-nvidia-h100-80gb-hbm3"
        self.assertEqual({"infiniband-vf.x1", "ethernet-vf.x1", f"{gpu}.x1", f"{gpu}.x1.infiniband-vf.x1",
                          f"{gpu}.x4.infiniband-vf.x4"}, set(sizes_of))
        one, four = sizes_of[f"{gpu}.x1.infiniband-vf.x1"], sizes_of[f"{gpu}.x4.infiniband-vf.x4"]
        self.assertEqual((28, 218 * GIB, True), (one.cpus, one.memory, one.near))
        self.assertEqual((112, 872 * GIB), (four.cpus, four.memory))

    def test_gpus_of_one_node_fit_it_beside_each_other(self) -> None:
        host = shared("mixed")
        nodes = {node.id: node for node in topology.read(host).nodes}
        for size in found("mixed").values():
            ((offer, count), *_) = size.devices
            for node in {device.numa_node for device in offer.devices}:
                self.assertLessEqual(size.cpus, len(nodes[node].cpus), size.name)
                self.assertLess(size.memory, nodes[node].memory, size.name)
                self.assertLessEqual(count, sum(device.numa_node == node for device in offer.devices), size.name)

    def test_huge_pages_are_left_to_those_who_ask_for_them(self) -> None:
        """24 GiB of each node."""
        self.assertEqual(218 * GIB, found("dgx")["gpu-nvidia-h100-80gb-hbm3.x1"].memory)

    def test_parts_of_a_gpu_divide_its_share(self) -> None:
        """Node 0 has three devices that containers can have beside the four slices of one GPU."""
        size = found("mixed")["gpu-nvidia-a100-sxm4-40gb.x1"]
        self.assertEqual(32 // 6, size.cpus)

    def test_devices_of_unknown_node(self) -> None:
        host = shared("small")
        unknown = Inventory(tuple(dataclasses.replace(device, numa_node=None) for device in scan(host).devices))
        made = {size.name: size for size in sizes(unknown, topology.read(host))}
        self.assertEqual({"gpu-nvidia-a100-sxm4-40gb.x1", "infiniband-vf.x1"}, set(made))
        self.assertEqual((16, 54 * GIB, False), (made["gpu-nvidia-a100-sxm4-40gb.x1"].cpus,
                                                 made["gpu-nvidia-a100-sxm4-40gb.x1"].memory,
                                                 made["gpu-nvidia-a100-sxm4-40gb.x1"].near))

    def test_host_without_devices(self) -> None:
        self.assertEqual((), sizes(Inventory(()), topology.read(shared("small"))))
