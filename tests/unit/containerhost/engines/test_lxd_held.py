# SPDX-License-Identifier: Apache-2.0
import dataclasses

import testtools

from containerhost.devices.model import CharNode, Device, Kind, NodeUse, Role, Slice
from containerhost.engines.lxd.held import held

GPU = Device(id="0000:3b:00.0", address="0000:3b:00.0", kind=Kind.GPU, vendor_id="10de", product_id="20b0",
             class_code="030200", plugin="nvidia", uuid="GPU-aa-1",
             nodes=(CharNode("/dev/nvidia0", 195, 0), CharNode("/dev/dri/card1", 226, 1),
                    CharNode("/dev/nvidiactl", 195, 255, NodeUse.SHARED)))
AMD = Device(id="0000:61:00.0", address="0000:61:00.0", kind=Kind.GPU, vendor_id="1002", product_id="738c",
             class_code="038000", plugin="amd", nodes=(CharNode("/dev/dri/card2", 226, 2),))
PART = dataclasses.replace(GPU, id="0000:3b:00.0/gi1/ci0", kind=Kind.GPU_SLICE, uuid="MIG-bb-2", parent=GPU.address,
                           slice=Slice(1, 0), nodes=(CharNode("/dev/nvidia-caps/nvidia-cap3", 234, 3),))
PF = Device(id="0000:5e:00.0", address="0000:5e:00.0", kind=Kind.NET, vendor_id="15b3", product_id="101b",
            class_code="020700", plugin="net", role=Role.PF, netdev="ibs1")
VF = dataclasses.replace(PF, id="0000:5e:00.1", address="0000:5e:00.1", role=Role.VF, netdev="ibs1v0",
                         other_netdevs=("ibs1v0d1",), parent=PF.address, vf_index=0,
                         nodes=(CharNode("/dev/infiniband/uverbs1", 231, 193),
                                CharNode("/dev/infiniband/umad1", 231, 1, NodeUse.MANAGEMENT),
                                CharNode("/dev/infiniband/rdma_cm", 10, 58, NodeUse.SHARED)))
AWAY = dataclasses.replace(VF, id="0000:5e:00.2", address="0000:5e:00.2", netdev=None, netdev_away=True,
                           other_netdevs=(), vf_index=1,
                           nodes=())
ALL = (GPU, AMD, PART, PF, VF, AWAY)
GPUS = {GPU.id, AMD.id, PART.id}


def instance(device, name="c1", project="default", **config):
    return {"name": name, "project": project, "config": config, "expanded_devices": {"d": device}}


class TestHeld(testtools.TestCase):
    def test_what_a_device_entry_names(self):
        physical = {"type": "gpu", "gputype": "physical"}
        mig = {"type": "gpu", "gputype": "mig"}
        for device, expected in (
            (physical | {"pci": "0000:3b:00.0"}, {GPU.id, PART.id}),
            (physical | {"pci": "3B:00.0"}, {GPU.id, PART.id}),
            ({"type": "gpu"}, GPUS),
            (physical | {"vendorid": "1002"}, {AMD.id}),
            (physical | {"vendorid": "10de", "productid": "ffff"}, set()),
            (physical | {"id": "2"}, {AMD.id, PART.id}),
            (physical | {"id": "nvidia.com/gpu=GPU-AA-1"}, {GPU.id}),
            (physical | {"id": "nvidia.com/gpu=0"}, {GPU.id, PART.id}),
            (physical | {"id": "amd.com/gpu=all"}, {AMD.id}),
            (mig | {"pci": "0000:3b:00.0", "mig.gi": "1", "mig.ci": "0"}, {PART.id}),
            (mig | {"pci": "0000:3b:00.0", "mig.gi": "2", "mig.ci": "0"}, set()),
            (mig | {"mig.uuid": "bb-2"}, {PART.id}),
            (mig | {"id": "nvidia.com/mig=MIG-bb-2"}, {PART.id}),
            ({"type": "nic", "nictype": "physical", "parent": "ibs1v0"}, {VF.id}),
            ({"type": "infiniband", "nictype": "physical", "parent": "ibs1v0"}, {VF.id}),
            ({"type": "nic", "nictype": "macvlan", "parent": "ibs1"}, set()),
            ({"type": "nic", "nictype": "physical", "parent": "ibs1v0d1"}, {VF.id}),
            ({"type": "nic", "nictype": "macvlan", "parent": "ibs1v0"}, {VF.id}),
            ({"type": "nic", "nictype": "ipvlan", "parent": "ibs1v0d1"}, {VF.id}),
            ({"type": "nic", "nictype": "bridged", "parent": "br0"}, set()),
            ({"type": "unix-char", "source": "/dev/infiniband/uverbs1"}, {VF.id}),
            ({"type": "unix-char", "path": "/dev/infiniband/umad1"}, {VF.id}),
            ({"type": "unix-char", "path": "/x", "major": "195", "minor": "0"}, {GPU.id}),
            ({"type": "unix-char", "source": "/dev/infiniband/rdma_cm"}, set()),
            ({"type": "pci", "address": "61:00.0"}, {AMD.id}),
            ({"type": "disk", "path": "/"}, set()),
        ):
            self.assertEqual(expected, set(held([instance(device)], ALL, "default")), device)

    def test_who_has_a_slice_by_its_nodes_has_its_gpus_node_but_not_the_gpu(self):
        gpus, capability = ({"type": "unix-char", "source": path} for path in
                            ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap3"))
        for devices, expected in (({"a": gpus}, {GPU.id}), ({"a": gpus, "b": capability}, {PART.id}),
                                  ({"a": gpus, "b": capability, "c": {"type": "gpu", "id": "nvidia.com/gpu=GPU-AA-1"}},
                                   {GPU.id, PART.id})):
            one = instance({}) | {"expanded_devices": devices}
            self.assertEqual(expected, set(held([one], ALL, "default")))

    def test_a_vf_that_lxd_chose(self):
        chosen = instance({"type": "nic", "nictype": "sriov", "parent": "ibs1"},
                          **{"volatile.d.last_state.vf.parent": "ibs1", "volatile.d.last_state.vf.id": "1"})
        self.assertEqual({AWAY.id: "c1"}, held([chosen], ALL, "default"))

    def test_an_interface_of_a_managed_network(self):
        started = instance({"type": "nic", "network": "fast"}, **{"volatile.d.host_name": "ibs1v0"})
        self.assertEqual({VF.id: "c1"}, held([started], ALL, "default"))

    def test_other_projects_are_named(self):
        gpu = {"type": "gpu", "pci": "0000:61:00.0"}
        self.assertEqual({AMD.id: "lab/c1"}, held([instance(gpu, project="lab")], ALL, "default"))
        self.assertEqual({AMD.id: "c1"}, held([instance(gpu, project="lab")], ALL, "lab"))
