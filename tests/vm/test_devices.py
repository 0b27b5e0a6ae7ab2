# SPDX-License-Identifier: Apache-2.0
"""Test what the emulated host of the other tests can only imitate: a kernel's own SR-IOV, resets and DRM nodes."""

import os

from containerhost.devices.model import Kind, LinkLayer
from containerhost.inventory.scan import scan
from containerhost.privileged import Privileged
from tests.vm.hardware import FUNCTIONS, PCI, RealDevices, pf

MOST = 7
FAR_NODE = 1  # where tools/vm puts the card


class TestFunctions(RealDevices):
    def test_discovery_tells_what_the_kernel_made(self) -> None:
        card = pf()
        self.assertEqual(("igb", FAR_NODE, MOST, LinkLayer.ETHERNET),
                         (card.driver, card.numa_node, card.total_vfs, card.link_layer))
        self.assertEqual([f"{FUNCTIONS} virtual functions are enabled", f"{card.netdev} is up"], list(card.host_use))
        made = [os.path.basename(os.readlink(PCI / card.address / f"virtfn{index}")) for index in range(FUNCTIONS)]
        self.assertEqual(made, [vf.address for vf in sorted(self.vfs, key=lambda vf: vf.vf_index or 0)])
        for vf in self.vfs:
            self.assertEqual(("igbvf", FAR_NODE, card.address, (), ()),
                             (vf.driver, vf.numa_node, vf.parent, vf.health, vf.host_use))

    def test_a_reset_by_the_kernel(self) -> None:
        self.assertTrue((PCI / self.vfs[0].address / "reset").exists(), "the function offers no reset")
        Privileged().reset(self.vfs[0].address)
        self.assertEqual((), scan().get(self.vfs[0].id).health)


class TestGpus(RealDevices):
    def setUp(self) -> None:
        super().setUp()
        self.gpus = [device for device in scan().devices if device.kind is Kind.GPU]

    def test_discovery_finds_both(self) -> None:
        self.assertEqual([("virtio", ()), ("virtio", ())], [(gpu.plugin, gpu.health) for gpu in self.gpus])
        self.assertIn(FAR_NODE, [gpu.numa_node for gpu in self.gpus])
