# SPDX-License-Identifier: Apache-2.0
import dataclasses
import email

import testtools

from containerhost.devices.grants import GpuGrant, Grant, NetdevGrant
from containerhost.devices.model import CharNode, Device, Kind, LinkLayer, NodeUse, Slice
from containerhost.engines import spec
from containerhost.engines.lxd import config
from containerhost.engines.spec import (
    BlockDevice,
    BridgedNic,
    CloudInit,
    ContainerSpec,
    Cpu,
    DirectoryDisk,
    IoLimit,
    IpConfig,
    Memory,
    Mount,
    Nic,
    PoolDisk,
    Program,
    RootDisk,
    Security,
)
from containerhost.errors import SpecError
from containerhost.vendors.nvidia.vendor import CAPABILITIES, RUNTIME, Nvidia
from hpcplan.affinity import Affinity

GiB = 1 << 30
OLD = frozenset({"kernel_limits", "nvidia_runtime", "limits_hugepages", "cloud_init"})
NEW = OLD | {"gpu_cdi", "numa_cpu_placement"}

GPU = Device(id="0000:3b:00.0", address="0000:3b:00.0", kind=Kind.GPU, vendor_id="10de", product_id="20b0",
             class_code="030200", plugin="nvidia", uuid="GPU-1")
VF = Device(id="0000:5e:00.1", address="0000:5e:00.1", kind=Kind.NET, vendor_id="15b3", product_id="101c",
            class_code="020700", plugin="net", netdev="ibs1v0", link_layer=LinkLayer.INFINIBAND)
RDMA_CM = CharNode("/dev/infiniband/rdma_cm", 10, 58, NodeUse.SHARED)


def gpu_grant(libraries=frozenset(), device=GPU):
    nodes = (CharNode("/dev/nvidia0", 195, 0), CharNode("/dev/dri/card0", 226, 0),
             CharNode("/dev/nvidiactl", 195, 255, NodeUse.SHARED))
    return Grant(device, nodes, gpu=GpuGrant(libraries))


def vf_grant(number=0):
    device = dataclasses.replace(VF, id=f"0000:5e:00.{number + 1}", address=f"0000:5e:00.{number + 1}")
    return Grant(device, (CharNode(f"/dev/infiniband/uverbs{number}", 231, 192 + number), RDMA_CM),
                 netdev=NetdevGrant(f"ibs1v{number}", f"ib{number}", LinkLayer.INFINIBAND),
                 limits={"memlock": "unlimited"})


def container(**more):
    parts = {"image": "busybox", "cpu": Cpu(2), "memory": Memory(GiB), "root": RootDisk("fast", 10 * GiB)} | more
    return ContainerSpec(name="c1", **parts)


class TestInstance(testtools.TestCase):
    def test_the_least(self):
        self.assertEqual({
            "name": "c1", "type": "container", "profiles": [], "ephemeral": False,
            "source": {"type": "image", "alias": "busybox"},
            "config": {"boot.autostart": "false", "limits.cpu": "2", "limits.memory": str(GiB),
                       "limits.processes": "16384", "limits.memory.enforce": "hard", "limits.memory.swap": "false",
                       "security.privileged": "false", "security.nesting": "false",
                       "security.idmap.isolated": "true", "security.syscalls.deny": "io_uring_setup errno 38"},
            "devices": {"root": {"type": "disk", "path": "/", "pool": "fast", "size": str(10 * GiB)}},
        }, config.instance(container(), OLD))

    def test_one_gpu_and_one_vf(self):
        body = config.instance(container(parts=(gpu_grant(), vf_grant())), OLD)
        self.assertEqual("unlimited", body["config"]["limits.kernel.memlock"])
        self.assertNotIn("nvidia.runtime", body["config"])
        del body["devices"]["root"]
        self.assertEqual({
            "gpu-0000-3b-00-0": {"type": "gpu", "gputype": "physical", "pci": "0000:3b:00.0", "mode": "0666"},
            "net-0000-5e-00-1": {"type": "nic", "nictype": "physical", "parent": "ibs1v0", "name": "ib0"},
            "node-infiniband-uverbs0": {"type": "unix-char", "source": "/dev/infiniband/uverbs0",
                                        "path": "/dev/infiniband/uverbs0", "mode": "0666"},
            "node-infiniband-rdma-cm": {"type": "unix-char", "source": "/dev/infiniband/rdma_cm",
                                        "path": "/dev/infiniband/rdma_cm", "mode": "0666"},
        }, body["devices"])

    def test_two_vfs_share_one_rdma_cm(self):
        devices = config.instance_devices(container(parts=(vf_grant(0), vf_grant(1))), OLD)
        self.assertEqual(1 + 2 * 2 + 1, len(devices))

    def test_two_interfaces_of_one_name(self):
        spec = container(parts=(Nic("ib0", "veth1"), vf_grant()))
        error = self.assertRaises(SpecError, config.instance, spec, OLD)
        self.assertIn("ib0", str(error))

    def test_device_names_hold_no_dot_and_fit(self):
        """LXD splits ``volatile.<device>.<key>`` at dots and allows 63 letters."""
        for name in config.instance_devices(container(parts=(gpu_grant(), vf_grant(), Nic("eth0", "v"))), OLD):
            self.assertRegex(name, r"^[A-Za-z0-9-]{1,63}$")

    def test_tenant_text_stays_a_value(self):
        evil = "x\nraw.lxc: lxc.mount.entry = /"
        body = config.instance(container(cloud_init=CloudInit(evil, evil, evil, evil)), OLD)
        self.assertEqual({"user.meta-data", "cloud-init.user-data", "cloud-init.vendor-data",
                          "cloud-init.network-config"}, {key for key, value in body["config"].items() if value == evil})

    def test_nics_and_mounts(self):
        devices = config.instance_devices(container(
            parts=(Nic("eth0", "tap1", "02:00:00:00:00:01", 1400),), mounts=(Mount("drive", "/a", "/b"),)), OLD)
        self.assertEqual({"type": "nic", "nictype": "physical", "parent": "tap1", "name": "eth0",
                          "hwaddr": "02:00:00:00:00:01", "mtu": "1400"}, devices["nic-eth0"])
        self.assertEqual({"type": "disk", "source": "/a", "path": "/b", "readonly": "true"}, devices["mount-drive"])

    def test_image_by_fingerprint(self):
        fingerprint = "ab" * 32
        self.assertEqual({"type": "image", "fingerprint": fingerprint}, config.image_source(fingerprint))


class TestParts(testtools.TestCase):
    def test_cpu(self):
        for wanted, extensions, expected in (
            (Cpu(4), OLD, {"limits.cpu": "4"}),
            # A lone number would be a count.
            (Cpu(1, cores=frozenset({5})), OLD, {"limits.cpu": "5-5"}),
            (Cpu(4, cores=frozenset({0, 2, 3, 7})), OLD, {"limits.cpu": "0-0,2-3,7-7"}),
            (Cpu(2, nodes=frozenset({1, 0})), OLD, {"limits.cpu": "2"}),
            (Cpu(2, nodes=frozenset({1, 0})), NEW, {"limits.cpu": "2", "limits.cpu.nodes": "0,1"}),
            (Cpu(1, cores=frozenset({5}), nodes=frozenset({1})), NEW,
             {"limits.cpu": "5-5", "raw.lxc": "lxc.cgroup.cpuset.mems = 1"}),
            (Cpu(1, cores=frozenset({5}), nodes=frozenset({1, 0})), {config.CGROUP2},
             {"limits.cpu": "5-5", "raw.lxc": "lxc.cgroup2.cpuset.mems = 0,1"}),
            (Cpu(2, frozenset({4, 5}), affinity=Affinity.CPU, choice=frozenset({4, 5, 6})), OLD,
             {"limits.cpu": "4-5", "user.containerhost.cores": "4-5"}),
            (Cpu(2, reserved=frozenset({4, 5})), OLD, {"limits.cpu": "2", "user.containerhost.cores.reserved": "4-5"}),
            (Cpu(2, affinity=Affinity.CPU, choice=frozenset({4, 5, 6})), OLD, {"limits.cpu": "2"}),
            (Cpu(4, share=250, priority=3), OLD,
             {"limits.cpu": "4", "limits.cpu.allowance": "250ms/100ms", "limits.cpu.priority": "3"}),
        ):
            self.assertEqual(expected, config.cpu(wanted, extensions), wanted)

    def test_hugepages(self):
        limits = config.memory(Memory(GiB, {2 << 20: 4 << 20, 1 << 30: 0}), OLD)
        self.assertEqual(("4194304", "0"), (limits["limits.hugepages.2MB"], limits["limits.hugepages.1GB"]))
        self.assertRaises(SpecError, config.memory, Memory(GiB, {3 << 20: 1}), OLD)
        self.assertRaises(SpecError, config.memory, Memory(GiB, {2 << 20: 1}), frozenset())

    def test_hosts_hugepages_that_nobody_asked_for(self):
        hosts = OLD | {config.host_pages("2MB"), config.host_pages("1GB"), config.host_pages("32MB")}
        limits = config.memory(Memory(GiB, {1 << 30: GiB}), hosts)
        self.assertEqual({"limits.hugepages.2MB": "0", "limits.hugepages.1GB": str(GiB)},
                         {key: value for key, value in limits.items() if "hugepages" in key})
        self.assertNotIn("limits.hugepages.2MB", config.memory(Memory(GiB), hosts - {"limits_hugepages"}))

    def test_groups_of_the_containers_own_are_limited_with_version_2(self):
        bound = container(cpu=Cpu(1, nodes=frozenset({1}), cores=frozenset({5})))
        for wanted, extensions, expected in (
            (container(), OLD, None),
            (container(), OLD | {config.CGROUP2}, config.GROUPS),
            (bound, OLD | {config.CGROUP2}, f"lxc.cgroup2.cpuset.mems = 1\n{config.GROUPS}"),
        ):
            self.assertEqual(expected, config.instance_config(wanted, extensions).get("raw.lxc"), wanted)

    def test_io_limits(self):
        for wanted, expected in (
            (IoLimit(), {}),
            (IoLimit(read_bytes=5, write_iops=7), {"limits.read": "5", "limits.write": "7iops"}),
            (IoLimit(read_iops=1, write_bytes=0), {"limits.read": "1iops", "limits.write": "0"}),
        ):
            self.assertEqual(expected, config.io_limits(wanted))
        error = self.assertRaises(SpecError, config.io_limits, IoLimit(write_bytes=1, write_iops=1))
        self.assertIn("limits.write", str(error))

    def test_the_largest_kernel_limit_wins(self):
        for limits, expected in (
            ([{"memlock": "5"}, {"memlock": "unlimited"}, {"memlock": "7"}], "unlimited"),
            ([{"memlock": "9"}, {"memlock": "10"}], "10"),
        ):
            self.assertEqual({"limits.kernel.memlock": expected}, config.kernel_limits(limits, OLD))
        self.assertRaises(SpecError, config.kernel_limits, [{"memlock": "1"}], frozenset())

    def test_what_a_container_lacks(self):
        """More of a limit is no lack; another value of any other key is."""
        wanted = {"limits.kernel.memlock": "4096", "nvidia.runtime": "true"}
        for present, expected in (({}, wanted),
                                  ({"limits.kernel.memlock": "unlimited", "nvidia.runtime": "true"}, {}),
                                  ({"limits.kernel.memlock": "512", "nvidia.runtime": "false"}, wanted),
                                  ({"limits.kernel.memlock": "4096"}, {"nvidia.runtime": "true"})):
            self.assertEqual(expected, config.lacking(present, wanted))
        self.assertEqual({"memlock": "4096"}, config.of_kernel_limits(wanted))

    def test_security(self):
        for wanted, expected in (
            (Security(), {"security.privileged": "false", "security.nesting": "false",
                          "security.idmap.isolated": "true"}),
            (Security(isolated=False, nesting=True), {"security.privileged": "false", "security.nesting": "true",
                                                      "security.idmap.isolated": "false"}),
            (Security(privileged=True), {"security.privileged": "true", "security.nesting": "false"}),
        ):
            self.assertEqual(expected | {"security.syscalls.deny": "io_uring_setup errno 38"}, config.security(wanted))

    def test_user_data_that_the_daemon_would_parse_or_cut_travels_as_a_mime_part(self):
        for text, kind in (("#cloud-config\n\t- : {\n", "text/cloud-config"), ("a\0b", "application/octet-stream")):
            with self.subTest(text):
                message = email.message_from_string(config.acceptable(text))
                self.assertEqual((kind, text.encode()), (message.get_content_type(), message.get_payload(decode=True)))
        for text in ("#!/bin/sh\n", "#cloud-config-archive\n", "## template: jinja\n#cloud-config\n", "", None):
            self.assertEqual(text, config.acceptable(text))

    def test_cloud_init_of_an_old_daemon(self):
        self.assertEqual({"user.user-data": "x"}, config.cloud_init(CloudInit(user_data="x"), frozenset()))


class TestGpus(testtools.TestCase):
    libraries = frozenset({"utility", "compute"})

    def test_libraries_by_runtime_where_there_is_no_cdi(self):
        body = config.instance(container(parts=(gpu_grant(self.libraries),)), OLD)
        self.assertEqual(("true", "compute,utility"),
                         (body["config"]["nvidia.runtime"], body["config"]["nvidia.driver.capabilities"]))
        self.assertEqual("0000:3b:00.0", body["devices"]["gpu-0000-3b-00-0"]["pci"])

    def test_libraries_by_cdi(self):
        body = config.instance(container(parts=(gpu_grant(self.libraries),)), NEW)
        self.assertNotIn("nvidia.runtime", body["config"])
        self.assertEqual({"type": "gpu", "gputype": "physical", "id": "nvidia.com/gpu=GPU-1"},
                         body["devices"]["gpu-0000-3b-00-0"])

    def test_libraries_before_there_is_a_gpu(self):
        for extensions, parts, expected in ((OLD, (), ("true", "compute,utility")), (NEW, (), (None, None)),
                                            (OLD, (gpu_grant(),), (None, None))):
            found = config.instance(container(parts=parts, gpu_libraries=self.libraries), extensions)["config"]
            self.assertEqual(expected, (found.get("nvidia.runtime"), found.get("nvidia.driver.capabilities")))
        error = self.assertRaises(SpecError, config.instance, container(gpu_libraries=self.libraries), frozenset())
        self.assertIn("before it has a GPU", str(error))

    def test_how_they_come_later(self):
        for extensions, libraries, words in ((OLD, self.libraries, "by nvidia.runtime"), (OLD, frozenset(), None),
                                             (NEW, self.libraries, "only while it is off"),
                                             (NEW | {"gpu_cdi_hotplug"}, self.libraries, "come with the GPU")):
            found = config.later_gpu(container(gpu_libraries=libraries), extensions)
            self.assertEqual(words is None, found is None)
            self.assertIn(words or "", found or "")
        self.assertIsNone(config.later_gpu(container(parts=(gpu_grant(),), gpu_libraries=self.libraries), OLD))

    def test_who_was_started_with_more_libraries_has_fewer_too(self):
        for present, wanted, expected in (("compute,utility", "utility", True), ("utility", "compute,utility", False),
                                          ("", "utility", False), ("compute,utility", "utility,compute", True)):
            keys = {RUNTIME: "true", CAPABILITIES: present}
            self.assertEqual(expected, not config.lacking(keys, Nvidia.lxd_libraries(wanted.split(",")).keys))
        self.assertEqual({RUNTIME: "true"}, config.lacking({}, {RUNTIME: "true"}))

    def test_no_way_to_bring_libraries(self):
        error = self.assertRaises(SpecError, config.instance, container(parts=(gpu_grant(self.libraries),)),
                                  frozenset())
        self.assertIn("0000:3b:00.0", str(error))

    def test_slice(self):
        part = dataclasses.replace(GPU, id="0000:3b:00.0/gi1/ci0", kind=Kind.GPU_SLICE, uuid="MIG-1", slice=Slice(1, 0))
        nodes = (CharNode("/dev/nvidia-caps/nvidia-cap13", 508, 13), CharNode("/dev/nvidia0", 195, 0, NodeUse.SHARED))
        for libraries, runtime in ((frozenset(), None), (self.libraries, "true")):
            grant = dataclasses.replace(gpu_grant(libraries, device=part), nodes=nodes)
            body = config.instance(container(parts=(grant,)), OLD)
            self.assertEqual({"node-nvidia-caps-nvidia-cap13", "node-nvidia0", "root"}, body["devices"].keys())
            self.assertEqual(runtime, body["config"].get("nvidia.runtime"))
        self.assertEqual({"gpu-0000-3b-00-0-gi1-ci0": {"type": "gpu", "gputype": "mig", "id": "nvidia.com/mig=MIG-1"}},
                         config.devices_of(grant, NEW))

    def test_amd_brings_kfd_beside_the_gpu(self):
        device = dataclasses.replace(GPU, vendor_id="1002", plugin="amd")
        grant = Grant(device, (CharNode("/dev/dri/card0", 226, 0), CharNode("/dev/kfd", 235, 0, NodeUse.SHARED)),
                      gpu=GpuGrant())
        self.assertEqual(["gpu-0000-3b-00-0", "node-kfd"], sorted(config.devices_of(grant, OLD)))

    def test_a_block_device_is_one_node_under_its_own_path_for_root_only(self):
        part = BlockDevice("8f2b.1", "/dev/loop7", "/dev/vdb")
        self.assertEqual({"block-8f2b-1": {"type": "unix-block", "source": "/dev/loop7", "path": "/dev/vdb",
                                           "mode": "0600"}}, config.devices_of(part, OLD))

    def test_a_further_disk_of_the_pool(self):
        part = PoolDisk("ephemeral0", "default", "c1-ephemeral0", "/ephemeral0")
        self.assertEqual({"disk-ephemeral0": {"type": "disk", "pool": "default", "source": "c1-ephemeral0",
                                              "path": "/ephemeral0"}}, config.devices_of(part, OLD))

    def test_a_directory_of_the_host_as_a_disk(self):
        part = DirectoryDisk("3", "/state/disks/one-1/3", "/media/3", read_only=True, io=IoLimit(read_bytes=5))
        self.assertEqual({"disk-3": {"type": "disk", "source": "/state/disks/one-1/3", "path": "/media/3",
                                     "readonly": "true", "limits.read": "5"}}, config.devices_of(part, OLD))

    def test_a_nic_that_lxd_makes(self):
        plain = {"type": "nic", "nictype": "bridged", "parent": "br0", "name": "eth0", "host_name": "one-1-0",
                 "hwaddr": "02:00:00:00:00:01"}
        part = BridgedNic("eth0", "br0", "one-1-0", "02:00:00:00:00:01")
        self.assertEqual({"nic-eth0": plain}, config.devices_of(part, OLD))
        limited = dataclasses.replace(part, mtu=9000, received=1000, sent=2000)
        self.assertEqual({"nic-eth0": plain | {"mtu": "9000", "limits.ingress": "1000", "limits.egress": "2000"}},
                         config.devices_of(limited, OLD))

    def test_devices_of_parts_are_known_as_such(self):
        parts = (gpu_grant(), vf_grant(), Nic("eth0", "v"), BlockDevice("a", "/dev/loop1", "/dev/vdb"),
                 PoolDisk("e", "default", "v", "/e"), DirectoryDisk("f", "/f", "/media/f"))
        own = config.instance_devices(container(mounts=(Mount("drive", "/a", "/b"),)), OLD)
        self.assertTrue(all(map(config.is_of_part, config.devices_of_all(parts, OLD))))
        self.assertFalse(any(map(config.is_of_part, own)))


# Every field of the contract must reach LXD; a new one without a translation fails here.
class TestNothingIsForgotten(testtools.TestCase):
    def test_every_part_of_a_spec_changes_the_body(self):
        plain = config.instance(container(), NEW)
        for field, value in {
            "name": "c2", "image": "other", "cpu": Cpu(3), "memory": Memory(2), "root": RootDisk("slow"),
            "parts": (Nic("eth0", "v"), gpu_grant()), "mounts": (Mount("m", "/a", "/b"),),
            "security": Security(nesting=True), "cloud_init": CloudInit(meta_data="x"), "labels": {"a": "b"},
            "environment": {"A": "B"}, "limits": {"nofile": "5"}, "processes": 7,
        }.items():
            self.assertNotEqual(plain, config.instance(dataclasses.replace(container(), **{field: value}), NEW), field)

    def test_what_lxd_has_no_way_for_is_refused(self):
        for field, value in {
            "program": Program(command=("x",)), "security": Security(read_only=True),
            "mounts": (Mount("m", "/a", "/b", follows=True),), "parts": (Nic("eth0", "v", setup=IpConfig()),),
        }.items():
            self.assertRaises(SpecError, config.instance, dataclasses.replace(container(), **{field: value}), NEW)

    def test_all_fields_are_tried_above(self):
        self.assertEqual(16, len(dataclasses.fields(spec.ContainerSpec)))
