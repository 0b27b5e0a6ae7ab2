# SPDX-License-Identifier: Apache-2.0
import shutil
import sys
import threading
from typing import ClassVar
from unittest import mock

import testtools

from containerhost import vendors
from containerhost.devices import pci
from containerhost.devices.model import Device, Kind, LinkLayer, Role
from containerhost.errors import DeviceNotFound
from containerhost.inventory.scan import HostView, Inventory, scan
from containerhost.linux.sysfs import Host
from containerhost.vendors.base import Vendor
from tests.unit.containerhost.hosts import Broken, shared


def nodes(device: Device) -> dict[str, str]:
    return {node.path: f"{node.major}:{node.minor} {node.use}" for node in device.nodes}


NVIDIA_SHARED = {
    "/dev/nvidiactl": "195:255 shared", "/dev/nvidia-uvm": "511:0 shared", "/dev/nvidia-uvm-tools": "511:1 shared",
    "/dev/nvidia-modeset": "195:254 shared",
}


class MixedHost(testtools.TestCase):
    """One of everything; see tests/fakehost/hosts/mixed.yaml."""

    def setUp(self) -> None:
        super().setUp()
        self.inventory = scan(shared("mixed"))

    def test_everything_is_found_in_the_order_of_ids_and_healthy(self):
        found = [device.id for device in self.inventory.devices]
        self.assertEqual(sorted(found), found)
        self.assertEqual([
            "0000:31:00.0", "0000:31:10.0", "0000:31:10.2", "0000:3b:00.0", "0000:3c:00.0", "0000:3c:00.0/gi1/ci0",
            "0000:3c:00.0/gi2/ci0", "0000:3c:00.0/gi5/ci0", "0000:3c:00.0/gi5/ci1", "0000:4d:00.0", "0000:5e:00.0",
            "0000:5e:00.1", "0000:5e:00.2", "0000:5e:00.3", "0000:5e:00.4", "0000:83:00.0", "0000:84:00.0",
            "0000:9a:00.0", "0000:d8:00.0", "0000:d8:00.1", "0000:d8:00.2", "0000:d8:00.3"], found)
        self.assertEqual([], [device.id for device in self.inventory.devices if not device.healthy])

    def test_nvidia_gpu(self):
        gpu = self.inventory.get("0000:3b:00.0")
        self.assertEqual(
            (Kind.GPU, "10de", "20b0", "030200", "nvidia", 0, "NVIDIA A100-SXM4-40GB", Role.PLAIN),
            (gpu.kind, gpu.vendor_id, gpu.product_id, gpu.class_code, gpu.driver, gpu.numa_node, gpu.model, gpu.role))
        self.assertTrue(gpu.uuid.startswith("GPU-"))
        self.assertEqual(NVIDIA_SHARED | {
            "/dev/nvidia0": "195:0 own", "/dev/dri/card0": "226:0 own", "/dev/dri/renderD128": "226:128 own"},
            nodes(gpu))

    def test_mig_slices_have_their_own_capability_and_share_the_gpu(self):
        part = self.inventory.get("0000:3c:00.0/gi5/ci1")
        self.assertEqual((Kind.GPU_SLICE, "0000:3c:00.0", "0000:3c:00.0", 5, 1, 0),
                         (part.kind, part.address, part.parent, part.slice.gi, part.slice.ci, part.numa_node))
        self.assertEqual(NVIDIA_SHARED | {
            "/dev/nvidia1": "195:1 shared", "/dev/nvidia-caps/nvidia-cap183": "508:183 shared",
            "/dev/nvidia-caps/nvidia-cap185": "508:185 own"}, nodes(part))
        sibling = self.inventory.get("0000:3c:00.0/gi5/ci0")
        own = [node for device in (part, sibling) for node in device.nodes if node.use == "own"]
        self.assertEqual(2, len(set(own)))

    def test_amd_gpu(self):
        gpu = self.inventory.get("0000:83:00.0")
        self.assertEqual(("AMD Instinct MI100", 32 << 30, 1), (gpu.model, gpu.memory, gpu.numa_node))
        self.assertEqual({"/dev/dri/card2": "226:2 own", "/dev/dri/renderD130": "226:130 own",
                          "/dev/kfd": "510:0 shared"}, nodes(gpu))

    def test_intel_gpus_of_both_drivers(self):
        for address, driver, card in (("0000:4d:00.0", "i915", 4), ("0000:9a:00.0", "xe", 5)):
            gpu = self.inventory.get(address)
            self.assertEqual(driver, gpu.driver)
            self.assertEqual({f"/dev/dri/card{card}": f"226:{card} own",
                              f"/dev/dri/renderD{128 + card}": f"226:{128 + card} own"}, nodes(gpu))

    def test_infiniband_vf(self):
        vf = self.inventory.get("0000:5e:00.3")
        self.assertEqual(
            (Kind.NET, Role.VF, "0000:5e:00.0", 2, "ibs1v2", LinkLayer.INFINIBAND, "15b3", "101c", "020700"),
            (vf.kind, vf.role, vf.parent, vf.vf_index, vf.netdev, vf.link_layer, vf.vendor_id, vf.product_id,
             vf.class_code))
        self.assertEqual(("mlx5_3", "b8ce:f603:5e00:0006", "b8ce:f603:5e00:0007", "active"),
                         (vf.rdma.ibdev, vf.rdma.node_guid, vf.rdma.port_guid, vf.rdma.port_state))
        self.assertEqual({
            "/dev/infiniband/uverbs3": "231:195 own", "/dev/infiniband/rdma_cm": "10:58 shared",
            "/dev/infiniband/umad3": "231:3 management", "/dev/infiniband/issm3": "231:67 management"}, nodes(vf))
        self.assertEqual((), vf.host_use)
        self.assertEqual(59, len(vf.mac))

    def test_roce_vf_is_ethernet_with_verbs_but_no_subnet_manager_node(self):
        vf = self.inventory.get("0000:d8:00.2")
        self.assertEqual((LinkLayer.ETHERNET, "mlx5_6"), (vf.link_layer, vf.rdma.ibdev))
        self.assertEqual({"/dev/infiniband/uverbs6", "/dev/infiniband/rdma_cm", "/dev/infiniband/umad6"},
                         set(nodes(vf)))

    def test_plain_sriov_vf_has_no_rdma(self):
        vf = self.inventory.get("0000:31:10.2")
        self.assertEqual((LinkLayer.ETHERNET, None, (), 1, "igbvf"),
                         (vf.link_layer, vf.rdma, vf.nodes, vf.vf_index, vf.driver))

    def test_physical_functions_are_the_hosts_own(self):
        pf = self.inventory.get("0000:5e:00.0")
        self.assertEqual((Role.PF, 8, ("4 virtual functions are enabled", "ibs1 is up")),
                         (pf.role, pf.total_vfs, pf.host_use))

    def test_related_devices(self):
        for name, expected in {
            "0000:3c:00.0": ["0000:3c:00.0/gi1/ci0", "0000:3c:00.0/gi2/ci0", "0000:3c:00.0/gi5/ci0",
                             "0000:3c:00.0/gi5/ci1"],
            "0000:3c:00.0/gi5/ci0": ["0000:3c:00.0"],
            "0000:5e:00.0": ["0000:5e:00.1", "0000:5e:00.2", "0000:5e:00.3", "0000:5e:00.4"],
            "0000:5e:00.2": ["0000:5e:00.0"],
            "0000:3b:00.0": [],
        }.items():
            related = self.inventory.related(self.inventory.get(name))
            self.assertEqual(expected, [device.id for device in related], name)

    def test_an_address_names_the_function_and_its_slices(self):
        self.assertEqual(5, len(self.inventory.by_address("0000:3C:00.0")))
        self.assertEqual(["0000:5e:00.0"], [device.id for device in self.inventory.by_address("0000:5e:00.0")])
        self.assertEqual((), self.inventory.by_address("0000:ff:00.0"))

    def test_an_unknown_address_is_an_error_that_says_so(self):
        error = self.assertRaises(DeviceNotFound, self.inventory.get, "0000:ff:00.0")
        self.assertIn("0000:ff:00.0", str(error))

    def test_json_values(self):
        vf = self.inventory.get("0000:5e:00.1").to_dict()
        self.assertEqual({"path": "/dev/infiniband/uverbs1", "major": 231, "minor": 193, "use": "own"}, vf["nodes"][0])
        self.assertEqual("b8ce:f603:5e00:0002", vf["rdma"]["node_guid"])
        self.assertEqual({"gi": 1, "ci": 0, "profile": None},
                         self.inventory.get("0000:3c:00.0/gi1/ci0").to_dict()["slice"])


class FabricClasses(testtools.TestCase):
    """InfiniBand cards of other PCI classes than 0207; see tests/fakehost/hosts/fabrics.yaml."""

    CARDS: ClassVar = {"0000:17:00.0": ("1077", "0c0600", "ib_qib", "ibq0"),
                       "0000:65:00.0": ("8086", "020800", "hfi1", "ibo0")}

    def test_cards_are_found_with_their_rdma_side(self) -> None:
        found = {device.id: device for device in scan(shared("fabrics")).devices}
        self.assertEqual(self.CARDS, {name: (device.vendor_id, device.class_code, device.driver, device.netdev)
                                      for name, device in found.items()})
        for device in found.values():
            self.assertEqual((Kind.NET, LinkLayer.INFINIBAND, "active", ()),
                             (device.kind, device.link_layer, device.rdma.port_state, device.health))
            self.assertIn("own", {node.use for node in device.nodes if "uverbs" in node.path})

    def test_class_tells_the_link_layer_without_a_driver(self) -> None:
        tree = self.useFixture(Broken("fabrics"))
        for name in self.CARDS:
            for part in ("net", "infiniband", "infiniband_verbs", "infiniband_mad"):
                shutil.rmtree(tree.function(name) / part)
            self.assertEqual(LinkLayer.INFINIBAND, scan(tree.host).get(name).link_layer)

    def test_other_serial_buses_are_no_network_cards(self) -> None:
        tree = self.useFixture(Broken("fabrics"))
        alias = tree.function("0000:17:00.0") / "modalias"
        alias.write_text(alias.read_text().replace("bc0Csc06", "bc0Csc03"))
        self.assertEqual(["0000:65:00.0"], [device.id for device in scan(tree.host).devices])


class BrokenHost(testtools.TestCase):
    """Every fault of tests/fakehost/hosts/broken.yaml is a complaint of that device and of no other."""

    def test_complaints(self):
        complaints = {device.id: "; ".join(device.health) for device in scan(shared("broken")).devices}
        expected = {
            "0000:3b:00.0": "", "0000:5e:00.0": "", "0000:5e:00.1": "",
            "0000:d8:00.0": "its port has no link to its switch",
            "0000:d8:00.1": "the port of its physical function has no link to its switch",
            "0000:3c:00.0": "fallen off the bus",
            "0000:5e:00.2": "no driver is bound",
            "0000:5e:00.3": "/dev/infiniband/uverbs3 is missing",
            "0000:af:00.0": "/dev/nvidia2 is missing",
            "0000:b0:00.0": "no driver is bound",
        }
        self.assertEqual(set(expected), set(complaints))
        for name, words in expected.items():
            self.assertEqual(bool(words), bool(complaints[name]), name)
            self.assertIn(words, complaints[name])


class Faults(testtools.TestCase):
    """Test faults of a device after the host has started."""

    def setUp(self) -> None:
        super().setUp()
        self.tree = self.useFixture(Broken("mixed"))

    def device(self, name: str) -> Device:
        return scan(self.tree.host).get(name)

    def test_an_interface_in_another_namespace_is_no_illness(self):
        self.tree.take_netdev("0000:5e:00.1")
        vf = self.device("0000:5e:00.1")
        self.assertEqual((None, True, True, LinkLayer.INFINIBAND),
                         (vf.netdev, vf.netdev_away, vf.healthy, vf.link_layer))

    def test_nothing_is_read_for_which_the_kernel_takes_a_devices_lock(self):
        """A driver that hangs in unbinding holds it, and every scan would wait without end."""
        read: list[str] = []
        text = Host.text
        with mock.patch.object(Host, "text", lambda host, path: (read.append(path), text(host, path))[1]):
            scan(self.tree.host)
        self.assertTrue([path for path in read if path.endswith("/modalias")])
        self.assertEqual([], [path for path in read if "/pci" in path and path.endswith(("/uevent", "/sriov_numvfs"))])

    def test_without_a_driver_an_interface_is_nowhere(self):
        self.tree.take_netdev("0000:5e:00.1")
        (self.tree.function("0000:5e:00.1") / "driver").unlink()
        vf = self.device("0000:5e:00.1")
        self.assertEqual((False, ("no driver is bound to it",)), (vf.netdev_away, vf.health))

    def test_an_interface_that_was_never_made_is_one(self):
        directory = self.tree.function("0000:5e:00.1") / "net"
        directory.rename(directory.with_name("power"))
        vf = self.device("0000:5e:00.1")
        self.assertFalse(vf.netdev_away)
        self.assertIn("mlx5_core made no network interface", vf.health[0])

    def test_an_interface_may_come_back_under_another_name(self):
        directory = self.tree.function("0000:5e:00.1") / "net"
        (directory / "ibs1v0").rename(directory / "dev100")
        self.assertEqual("dev100", self.device("0000:5e:00.1").netdev)

    def test_the_representors_of_a_switch_are_not_its_interface(self):
        directory = self.tree.function("0000:d8:00.0") / "net"
        for name, port in (("a0", "pf0vf0"), ("a1", "c1pf0vf1"), ("ens4f0np0", "p0")):
            (directory / name).mkdir(exist_ok=True)
            (directory / name / "phys_port_name").write_text(port + "\n")
        self.assertEqual("ens4f0np0", self.device("0000:d8:00.0").netdev)

    def test_drivers_that_keep_a_device_from_containers(self):
        for address, driver, words in (
            ("0000:3b:00.0", "vfio-pci", "reserves it for virtual machines"),
            ("0000:3b:00.0", "nouveau", "containers need nvidia"),
            ("0000:83:00.0", "radeon", "containers need amdgpu"),
            ("0000:4d:00.0", "xe-vfio-pci", "containers need i915 or xe"),
            ("0000:5e:00.1", "vfio-pci", "reserves it for virtual machines"),
        ):
            self.tree.rebind(address, driver)
            self.assertIn(words, "; ".join(self.device(address).health), driver)

    def test_a_gpu_the_driver_does_not_know(self):
        self.tree.path("/proc/driver/nvidia/gpus/0000:3b:00.0/information").unlink()
        self.assertIn("the nvidia driver does not know it", self.device("0000:3b:00.0").health[0])

    def test_a_gpu_that_was_never_used_has_no_uuid_yet(self):
        self.tree.write("/proc/driver/nvidia/gpus/0000:3b:00.0/information",
                        "Model: \t Tesla\nGPU UUID: \t GPU-????????-????-????-????-????????????\nDevice Minor: \t 0\n")
        gpu = self.device("0000:3b:00.0")
        self.assertEqual((None, True, "Tesla"), (gpu.uuid, gpu.healthy, gpu.model))

    def test_without_uvm_cuda_cannot_work(self):
        self.tree.write("/proc/devices", "Character devices:\n195 nvidia\n508 nvidia-caps\n\n"
                                         "Block devices:\n511 nvidia-uvm\n")
        gpu = self.device("0000:3b:00.0")
        self.assertIn("nvidia-modprobe", gpu.health[0])
        self.assertNotIn("/dev/nvidia-uvm", nodes(gpu))

    def test_uvm_that_is_loaded_after_a_service_has_looked(self):
        majors = self.tree.path("/proc/devices").read_text()
        self.tree.write("/proc/devices", majors.replace("nvidia-uvm", "other"))
        self.assertIn("nvidia-modprobe", self.device("0000:3b:00.0").health[0])
        self.tree.write("/proc/devices", majors)
        self.assertTrue(self.device("0000:3b:00.0").healthy)

    def test_the_nvidia_major_is_known_even_if_proc_devices_is_not(self):
        self.tree.path("/proc/devices").unlink()
        self.assertEqual("195:0 own", nodes(self.device("0000:3b:00.0"))["/dev/nvidia0"])

    def test_nodes_that_udev_did_not_make(self):
        for path, name in (("/dev/nvidiactl", "0000:3b:00.0"),
                           ("/dev/nvidia-caps/nvidia-cap185", "0000:3c:00.0/gi5/ci1"),
                           ("/dev/dri/renderD130", "0000:83:00.0"), ("/dev/kfd", "0000:84:00.0"),
                           ("/dev/infiniband/rdma_cm", "0000:5e:00.2")):
            self.tree.path(path).unlink()
            self.assertIn(f"device node {path} is missing", self.device(name).health)

    def test_management_nodes_that_nobody_made_are_only_not_offered(self):
        self.tree.path("/dev/infiniband/umad1").unlink()
        vf = self.device("0000:5e:00.1")
        self.assertTrue(vf.healthy)
        self.assertNotIn("/dev/infiniband/umad1", nodes(vf))
        self.assertIn("/dev/infiniband/issm1", nodes(vf))

    def test_what_the_host_does_with_an_interface(self):
        route = "Iface\tDestination\tGateway\n{}\t{}\t00000000\n"
        for change, expected in (
            (("/proc/net/route", route.format("ibs1v0", "00000000")), ("ibs1v0 carries the default route",)),
            (("/proc/net/route", route.format("ibs1v0", "0000A8C0")), ("ibs1v0 has addresses",)),
            (("/proc/net/route", route.format("other", "00000000")), ()),
            (("/proc/net/if_inet6", "fe80000000000000ba 0a 40 20 80 ibs1v0\n"), ()),
            (("/proc/net/if_inet6", "20010db8000000000a 0a 40 00 80 ibs1v0\n"), ("ibs1v0 has addresses",)),
        ):
            self.tree.write(*change)
            self.assertEqual(expected, self.device("0000:5e:00.1").host_use, change)

    def test_a_bridge_port_is_the_hosts(self):
        (self.tree.function("0000:5e:00.1") / "net/ibs1v0/master").symlink_to("../../br0")
        self.assertEqual(("ibs1v0 is a port of br0",), self.device("0000:5e:00.1").host_use)

    def test_a_physical_function_without_vfs_that_is_down_is_free(self):
        (self.tree.function("0000:d8:00.1") / "net/ens4f1np1/flags").write_text("0x1002\n")
        self.assertEqual((), self.device("0000:d8:00.1").host_use)

    def test_a_virtio_card_hangs_its_interface_one_level_lower(self):
        function = self.tree.function("0000:31:10.0")
        (function / "virtio0").mkdir()
        (function / "net").rename(function / "virtio0/net")
        self.assertEqual("ens9f0v0", self.device("0000:31:10.0").netdev)

    def test_a_healthy_vf_reads_ff_in_place_of_its_ids_only(self):
        config = self.tree.function("0000:5e:00.1") / "config"
        self.assertEqual(b"\xff" * 4, config.read_bytes()[:4])
        self.assertTrue(self.device("0000:5e:00.1").healthy)
        config.write_bytes(b"\xff" * 64)
        self.assertIn("fallen off the bus", self.device("0000:5e:00.1").health[0])

    def test_a_port_without_guid(self):
        ports = self.tree.function("0000:5e:00.1") / "infiniband/mlx5_1/ports/1"
        (ports / "gids/0").write_text("fe80:0000:0000:0000:0000:0000:0000:0000\n")
        self.assertIsNone(self.device("0000:5e:00.1").rdma.port_guid)

    def test_one_plug_ins_mistake_hides_nothing(self):
        class Wrong(Vendor):
            name = "wrong"

            @classmethod
            def claims(cls, function):
                return function.vendor_id == "1002"

            def describe(self, function):
                raise ZeroDivisionError("oops")

            @classmethod
            def grant(cls, device, options):
                raise NotImplementedError

        with mock.patch.object(vendors, "load", return_value=(Wrong, *vendors.load())):
            inventory = scan(self.tree.host)
        self.assertEqual(22, len(inventory.devices))
        self.assertIn("oops", inventory.get("0000:83:00.0").health[0])


class View(testtools.TestCase):
    """One scan, and single devices read anew."""

    def setUp(self) -> None:
        super().setUp()
        self.tree = self.useFixture(Broken("mixed"))
        self.view = HostView(self.tree.host)

    def test_host_is_scanned_once_when_first_asked(self) -> None:
        with mock.patch.object(pci, "functions", wraps=pci.functions) as functions, \
                mock.patch.object(pci, "function", wraps=pci.function) as function:
            self.assertEqual(0, functions.call_count)
            self.view.refresh(["0000:3b:00.0"])
            self.assertIs(self.view.inventory, self.view.refresh([]))
            self.assertEqual((1, 0), (functions.call_count, function.call_count))
            self.view.refresh(["0000:3c:00.0/gi1/ci0", "0000:3c:00.0/gi2/ci0", "0000:5e:00.1"])
            self.assertEqual((1, 2), (functions.call_count, function.call_count))

    def test_device_read_alone_is_as_in_a_scan(self) -> None:
        before = self.view.inventory
        for device in before.devices:
            self.assertEqual(before.devices, self.view.refresh([device.id]).devices, device.id)

    def test_only_devices_at_the_address_are_read(self) -> None:
        slices = self.view.inventory.by_address("0000:3c:00.0")
        self.assertEqual(5, len(slices))
        for address in ("0000:3c:00.0", "0000:3b:00.0"):
            self.tree.function(address).joinpath("config").write_bytes(b"\xff" * 64)
        inventory = self.view.refresh([slices[1].id])
        self.assertEqual([False] * 5, [device.healthy for device in inventory.by_address("0000:3c:00.0")])
        self.assertTrue(inventory.get("0000:3b:00.0").healthy)

    def test_device_that_left_the_host_is_there_no_more(self) -> None:
        before = self.view.inventory.devices
        self.tree.path("/sys/bus/pci/devices/0000:3c:00.0").unlink()
        inventory = self.view.refresh(["0000:3c:00.0/gi1/ci0"])
        self.assertEqual([device for device in before if device.address != "0000:3c:00.0"], list(inventory.devices))
        self.assertRaises(DeviceNotFound, inventory.get, "0000:3c:00.0/gi1/ci0")


class Reading(testtools.TestCase):
    def test_no_device_node_is_ever_opened(self):
        host, opened, me = shared("mixed"), [], threading.get_ident()

        def watch(event: str, arguments: tuple) -> None:
            if event == "open" and watching and threading.get_ident() == me:
                opened.append(str(arguments[0]))

        watching = False
        sys.addaudithook(watch)  # it cannot be taken away again, so a flag makes it deaf
        watching = True
        scan(host)
        watching = False
        self.assertTrue(opened)
        nodes = [path for path in opened if path.removeprefix(str(host.root)).startswith("/dev")]
        self.assertEqual({f"{host.root}/dev/kmsg"}, set(nodes))  # the kernel's log is no device's

    def test_this_host_can_be_scanned(self):
        devices = scan(Host()).devices
        self.assertEqual(sorted(device.id for device in devices), [device.id for device in devices])

    def test_an_empty_tree_has_no_devices(self):
        self.assertEqual((), scan(Host("/nonexistent")).devices)

    def test_links_that_lead_in_circles(self):
        def device(name: str, parent: str) -> Device:
            return Device(id=name, address=name, kind=Kind.NET, vendor_id="15b3", product_id="101c",
                          class_code="020700", plugin="net", parent=parent)

        a, b, c = device("a", "b"), device("b", "a"), device("c", "c")
        inventory = Inventory((a, b, c))
        self.assertEqual((b,), inventory.related(a))
        self.assertEqual((), inventory.related(c))
