# SPDX-License-Identifier: Apache-2.0
"""MIG slices of one GPU in two real containers."""

from containerhost.allocation.refusals import Request
from containerhost.devices.model import Kind
from containerhost.inventory.scan import scan
from tests.functional.containerhost import test_lxd_devices as devices


class SliceTest(devices.DeviceTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.slices = [device for device in scan().devices if device.kind is Kind.GPU_SLICE]

    def test_two_containers_share_a_gpu_and_neither_has_the_others_slice(self) -> None:
        for name, which in (("c1", self.slices[0]), ("c2", self.slices[1])):
            grants = self.acquired(name, (Request(which.id),))
            self.engine.verify(name, grants)
            _, listed = self.inside(name, "sh", "-c", "cd /dev/nvidia-caps && ls")
            own = {node.path.rpartition("/")[2] for node in which.nodes if node.path.startswith("/dev/nvidia-caps/")}
            self.assertEqual(own, set(listed.split()))
