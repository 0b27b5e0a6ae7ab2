# SPDX-License-Identifier: Apache-2.0
"""Give whole GPUs of every vendor and functions of every kind of network card to real containers, by flavor."""

from tests.functional.nova import base  # isort: skip

import json

from containerhost.devices.model import Device, Kind, LinkLayer, NodeUse, Role
from containerhost.inventory.scan import scan
from nova_lxd_ext.hardware.pci import TYPES
from tests import levels

# Nodes in /dev of a container without these devices.
PLAIN = ("console", "full", "fuse", "null", "ptmx", "random", "tty", "urandom", "zero", "net/tun")


@levels.exhaustive("each vendor's by itself stay", tests=("test_four_kinds_in_one_server",))
class VendorsTest(base.LxdServers):
    def setUp(self) -> None:
        # One of each sort; the NVIDIA GPU in MIG mode is no whole GPU.
        found = {device.id: device for device in scan().devices}
        self.samples: dict[str, Device] = {
            "nvidia": found["0000:3b:00.0"], "amd": found["0000:83:00.0"], "intel-i915": found["0000:4d:00.0"],
            "intel-xe": found["0000:9a:00.0"], "infiniband": found["0000:5e:00.1"], "roce": found["0000:d8:00.2"],
            "ethernet": found["0000:31:10.0"]}
        super().setUp()

    def _configure(self) -> None:
        super()._configure()
        ids = {name: {"vendor_id": device.vendor_id, "product_id": device.product_id}
               for name, device in self.samples.items()}
        self.flags(device_spec=[json.dumps(spec) for spec in ids.values()],
                   alias=[json.dumps({"name": name, **spec, "device_type": TYPES[self.samples[name].role]})
                          for name, spec in ids.items()], group="pci")

    def nodes(self, server: dict) -> set[str]:
        """Character nodes in the container's /dev, beside those every container has."""
        # LXD keeps a directory in /dev that even root in the container cannot read.
        listing = self.inside(server, "find", "/dev", "-path", "/dev/.lxd-mounts", "-prune", "-o", "-path", "/dev/pts",
                              "-prune", "-o", "-type", "c", "-print").output.splitlines()
        return {path for path in listing if path.removeprefix("/dev/") not in PLAIN}

    def interfaces(self, server: dict) -> set[str]:
        return set(self.inside(server, "ls", "/sys/class/net").output.split()) - {"lo"}

    def chosen(self) -> list[str]:
        """Return the sorts to try one by one; in the gate those whose turn it is, since others come together below."""
        names = list(self.samples)
        gpus, cards = names[:4], names[4:]
        return levels.budget(gate=[levels.turn(gpus), levels.turn(cards)], exhaustive=names)

    def test_each_is_given_whole_and_alone_and_comes_back(self) -> None:
        expected_interface = {"infiniband": "ib0", "roce": "eth0", "ethernet": "eth0"}
        for name in self.chosen():
            with self.subTest(name):
                server = self.server(self.flavor(pci_passthrough__alias=f"{name}:1"))
                (device_id,) = self.held()
                device = scan().get(device_id)
                wanted = {node.path for node in device.nodes if node.use is not NodeUse.MANAGEMENT}
                self.assertEqual(wanted, self.nodes(server))
                wanted_interfaces = {expected_interface[name]} if name in expected_interface else set()
                self.assertEqual(wanted_interfaces, self.interfaces(server))
                self._delete_server(server)
                self.assert_nothing_left()

    def test_four_kinds_in_one_server(self) -> None:
        alias = "amd:2,infiniband:2,roce:1,intel-xe:1"
        server = self.server(self.flavor(pci_passthrough__alias=alias))
        self.assertEqual({"ib0", "ib1", "eth0"}, self.interfaces(server))
        held = [scan().get(device_id) for device_id in self.held()]
        self.assertEqual({node.path for device in held for node in device.nodes if node.use is not NodeUse.MANAGEMENT},
                         self.nodes(server))
        self.assertEqual(2, sum(device.vendor_id == "1002" for device in held))
        self._delete_server(server)
        self.assert_nothing_left()

    def test_what_nova_is_told(self) -> None:
        """No slice, no GPU that is cut into slices, no function the host itself uses."""
        told = {entry["address"]: entry for entry in json.loads(
            self.driver.get_available_resource(base.HOST)["pci_passthrough_devices"])}
        devices = {device.id: device for device in scan().devices}
        cut = {device.parent for device in devices.values() if device.kind is Kind.GPU_SLICE}
        self.assertEqual({"0000:3c:00.0"}, cut)
        self.assertNotIn("0000:3c:00.0", told)
        vfs = {device.id for device in devices.values() if device.role is Role.VF}
        self.assertEqual(vfs, {address for address, entry in told.items() if entry["dev_type"] == "type-VF"})
        self.assertEqual({device.parent for device in devices.values() if device.link_layer is LinkLayer.INFINIBAND
                          and device.role is Role.VF}, {told["0000:5e:00.1"]["parent_addr"]})
        self.assertEqual([0, 1], [told["0000:3b:00.0"]["numa_node"], told["0000:83:00.0"]["numa_node"]])
