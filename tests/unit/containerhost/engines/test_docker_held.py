# SPDX-License-Identifier: Apache-2.0
import dataclasses

import testtools

from containerhost.devices.model import CharNode, NodeUse
from containerhost.engines.docker.held import held
from tests.unit.containerhost.engines.test_lxd_config import GPU, RDMA_CM, VF

FIRST = dataclasses.replace(GPU, nodes=(CharNode("/dev/nvidia0", 195, 0), CharNode("/dev/dri/card0", 226, 0),
                                        CharNode("/dev/nvidiactl", 195, 255, NodeUse.SHARED)))
SECOND = dataclasses.replace(GPU, id="0000:af:00.0", uuid="GPU-2", nodes=(CharNode("/dev/nvidia1", 195, 1),))
CARD = dataclasses.replace(VF, nodes=(CharNode("/dev/infiniband/uverbs0", 231, 192), RDMA_CM))
ALL = (FIRST, SECOND, CARD)


class HeldTest(testtools.TestCase):
    def test_what_a_configuration_names(self):
        for config, expected in (
            ({}, ()),
            ({"Devices": None, "DeviceRequests": None}, ()),
            ({"Devices": [{"PathOnHost": "/dev/nvidia0"}]}, (FIRST,)),
            ({"Devices": [{"PathOnHost": "/dev/dri/"}]}, (FIRST,)),
            ({"Devices": [{"PathOnHost": "/dev/infiniband"}]}, (CARD,)),
            ({"Devices": [{"PathOnHost": "/dev/nvidiactl"}, {"PathOnHost": "/dev/infiniband/rdma_cm"}]}, ()),
            ({"Devices": [{"PathOnHost": "/dev/nvidia"}, {"PathOnHost": ""}]}, ()),
            ({"DeviceRequests": [{"Count": -1}]}, (FIRST, SECOND)),
            ({"DeviceRequests": [{"DeviceIDs": ["gpu-2"]}]}, (SECOND,)),
            ({"DeviceRequests": [{"DeviceIDs": ["1"]}]}, (FIRST, SECOND)),
            ({"Privileged": True}, ALL),
        ):
            self.assertEqual({device.id for device in expected}, held(config, ALL), config)
