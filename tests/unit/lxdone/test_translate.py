# SPDX-License-Identifier: Apache-2.0

import testtools

from containerhost.engines.spec import BridgedNic, Cpu, DirectoryDisk, IoLimit, Memory, Security
from lxdone import translate
from lxdone.conf import Options
from onedriver.errors import BadInput, NotSupported
from onedriver.node.limits import NodeCores
from tests.unit.lxdone.machines import machine

MIB = 1 << 20
NODES = {0: frozenset({0, 1, 2, 3}), 1: frozenset({4, 5, 6, 7})}
NODE_1 = "<NUMA_NODE>{cpus}<MEMORY_NODE_ID>1</MEMORY_NODE_ID></NUMA_NODE>"


def topology(policy: str, cpus: str = "", more: str = "") -> str:
    return f"<TOPOLOGY>{policy}{more}</TOPOLOGY>" + NODE_1.format(cpus=cpus)


class SpecTest(testtools.TestCase):
    def test_a_recorded_vm(self) -> None:
        spec = translate.spec(machine(), Options(storage_pool="fast"), NodeCores(NODES))
        self.assertEqual(("one-1", Cpu(2, share=200), Memory(2048 * MIB), "fast", 16 * MIB, Security()),
                         (spec.name, spec.cpu, spec.memory, spec.root.pool, spec.root.size, spec.security))
        self.assertEqual({"one.vm": "1", "one.stime": "1795247695"}, dict(spec.labels))

    def test_pinned_to_the_cpus_the_core_chose(self) -> None:
        vm = machine(more=topology("<PIN_POLICY>CORE</PIN_POLICY>", "<CPUS>5,7</CPUS>"))
        self.assertEqual(Cpu(2, frozenset({5, 7}), frozenset({1})), translate.cpu(vm, NodeCores(NODES)))

    def test_near_a_node_without_cpus_of_its_own(self) -> None:
        vm = machine(more=topology("<NODE_AFFINITY>1</NODE_AFFINITY>"))
        self.assertEqual(Cpu(2, NODES[1], frozenset({1}), share=200), translate.cpu(vm, NodeCores(NODES)))

    def test_huge_pages_are_all_of_the_memory(self) -> None:
        vm = machine(more=topology("", more="<HUGEPAGE_SIZE>2</HUGEPAGE_SIZE>"))
        self.assertEqual(Memory(2048 * MIB, {2 * MIB: 2048 * MIB}), translate.memory(vm))

    def test_a_placement_this_host_cannot_have_is_refused(self) -> None:
        pinned = machine(more="<TOPOLOGY><PIN_POLICY>THREAD</PIN_POLICY></TOPOLOGY>")
        self.assertIn("chose no CPUs", str(self.assertRaises(BadInput, translate.cpu, pinned, NodeCores(NODES))))
        away = machine(more=topology("<PIN_POLICY>CORE</PIN_POLICY>", "<CPUS>5</CPUS>"))
        one = NodeCores({0: NODES[0]})
        self.assertIn("NUMA node 1", str(self.assertRaises(BadInput, translate.cpu, away, one)))


class SecurityTest(testtools.TestCase):
    def test_only_the_administrator_allows_more(self) -> None:
        generous = Options(allow_nesting=True, allow_privileged=True)
        for key, secure in ((translate.NESTING, Security(nesting=True)),
                            (translate.PRIVILEGED, Security(privileged=True))):
            self.assertEqual(secure, translate.security({key: "yes"}, generous))
            error = self.assertRaises(NotSupported, translate.security, {key: "YES"}, Options())
            self.assertIn("administrator", str(error))

    def test_no_is_no(self) -> None:
        for word in ("no", "false", "0", "NO", ""):
            own = {translate.PRIVILEGED: word}
            self.assertEqual(Security(), translate.security(own, Options(allow_privileged=True)))
        self.assertRaises(BadInput, translate.security, {translate.PRIVILEGED: "maybe"}, Options())

    def test_other_settings_of_lxd_are_refused_not_ignored(self) -> None:
        for key in ("LXD_RAW", "LXD_PROFILE", "LXD_SECURITY_IDMAP"):
            error = self.assertRaises(NotSupported, translate.security, {key: "x"}, Options())
            self.assertIn(key, str(error))


class ProcessesTest(testtools.TestCase):
    def test_fewer_than_the_node_allows_and_never_more(self) -> None:
        def limit(text: str) -> int:
            vm = machine()._replace(own={"LXD_PROCESS_LIMIT": text})
            return translate.spec(vm, Options(process_limit=500), NodeCores()).processes

        self.assertEqual((500, 500, 7), (limit(""), limit("500"), limit("7")))
        for text in ("501", "0", "-1", "unlimited", "1e2"):
            self.assertIn("process_limit", str(self.assertRaises(BadInput, limit, text)))


class UnpackedTest(testtools.TestCase):
    def test_the_disks_size_and_the_nodes_limit(self) -> None:
        def limit(size: int | None) -> int:
            disk = machine().disks[0]._replace(size=size)
            return translate.unpacked_limit(machine()._replace(disks=(disk,)), Options(unpacked_limit=2))

        self.assertEqual([2 << 30, (2 << 30) + 5], [limit(None), limit(5)])


class LibrariesTest(testtools.TestCase):
    def test_what_a_template_may_ask_for(self) -> None:
        for text, expected in (("compute,utility", {"compute", "utility"}), (" Compute , video ", {"compute", "video"}),
                               ("none", set()), ("", None)):
            found = translate.gpu_capabilities({"LXD_GPU_CAPABILITIES": text})
            self.assertEqual(expected, found)
            spec = translate.spec(machine()._replace(own={"LXD_GPU_CAPABILITIES": text}), Options(), NodeCores())
            self.assertEqual(expected or set(), spec.gpu_libraries)
        for text in ("all", "compute;reboot", "compute,,utility", "none,compute"):
            error = self.assertRaises(BadInput, translate.gpu_capabilities, {"LXD_GPU_CAPABILITIES": text})
            self.assertIn("none or some of compute", str(error))


class DiskTest(testtools.TestCase):
    def test_only_what_the_container_will_have(self) -> None:
        translate.require_disks(machine())
        for kind, words in (("swap", "swap space"), ("GLUSTER", "of type GLUSTER")):
            other = machine(("<TYPE><![CDATA[fs]]>", f"<TYPE>{kind}"))
            self.assertIn(f"disk 1 is {words}", str(self.assertRaises(NotSupported, translate.require_disks, other)))
        formatted = machine(("<SIZE><![CDATA[4]]></SIZE>", "<SIZE>4</SIZE>"), ("<FORMAT><![CDATA[raw]]></FORMAT>"
                            "<PERSISTENT_SNAPSHOTS><![CDATA[YES]]></PERSISTENT_SNAPSHOTS><SIZE>4<",
                            "<FORMAT>swap</FORMAT><SIZE>4<"))
        self.assertIn("disk 1 is swap space", str(self.assertRaises(NotSupported, translate.require_disks, formatted)))
        gluster = machine(("<TYPE><![CDATA[FILE]]>", "<TYPE>GLUSTER"))
        self.assertIn("type GLUSTER", str(self.assertRaises(NotSupported, translate.require_disks, gluster)))
        read_only = machine(("<READONLY><![CDATA[NO]]>", "<READONLY>YES"))
        self.assertIn("READONLY", str(self.assertRaises(NotSupported, translate.require_disks, read_only)))

    def test_packed_root_without_size_of_its_own_is_not_held_to_the_size_of_its_package(self) -> None:
        def size(mib: int, packed: bool) -> int | None:
            disk = machine().disks[0]._replace(size=mib << 20, original_size=2 << 20)
            vm = machine()._replace(disks=(disk,))
            return translate.spec(vm, Options(packed_root_size=3), NodeCores(), packed=packed).root.size

        self.assertEqual([3 << 30, 2 << 20, 4 << 20, 4 << 20],
                         [size(2, True), size(2, False), size(4, True), size(4, False)])

    def test_images_and_volatile_disks_are_seen_as_directories(self) -> None:
        for kind, read_only in (("FILE", False), ("BLOCK", False), ("CDROM", True), ("fs", False)):
            (disk,) = translate.further(machine(("<TYPE><![CDATA[fs]]>", f"<TYPE>{kind}")))
            self.assertEqual(DirectoryDisk("1", "/s/1", "/media/1", read_only), translate.directory_disk(disk, "/s/1"))
            self.assertEqual(kind == "fs", translate.is_volatile(disk))

    def test_limits_of_speed(self) -> None:
        for more, expected in (("<TOTAL_IOPS_SEC>100</TOTAL_IOPS_SEC>", IoLimit(read_iops=100, write_iops=100)),
                               ("<TOTAL_BYTES_SEC>9</TOTAL_BYTES_SEC><READ_BYTES_SEC>5</READ_BYTES_SEC>",
                                IoLimit(read_bytes=5, write_bytes=9)),
                               ("<READ_BYTES_SEC>5</READ_BYTES_SEC><WRITE_IOPS_SEC>7</WRITE_IOPS_SEC>",
                                IoLimit(read_bytes=5, write_iops=7)),
                               ("<READ_BYTES_SEC>0</READ_BYTES_SEC>", IoLimit())):
            disks = machine(("<TYPE><![CDATA[fs]]>", f"{more}<TYPE>fs")).disks
            self.assertEqual([IoLimit(), expected], [translate.io_limit(disk) for disk in disks])
        both = machine(("<TYPE><![CDATA[fs]]>", "<READ_BYTES_SEC>5</READ_BYTES_SEC><TOTAL_IOPS_SEC>7</TOTAL_IOPS_SEC>"
                                                "<TYPE>fs"))
        self.assertRaises(NotSupported, translate.io_limit, both.disks[1])

    def test_another_size_of_one_disk(self) -> None:
        vm, _ = translate.resized(machine(), "1", "8")
        self.assertEqual([16 * MIB, 8 * MIB], [disk.size for disk in vm.disks])
        for wrong in (("7", "8"), ("1", "0"), ("1", "-3"), ("../x", "8"), ("1", "8x")):
            self.assertRaises(BadInput, translate.resized, machine(), *wrong)

    def test_nothing_to_boot_from(self) -> None:
        vm = machine(("<TYPE><![CDATA[FILE]]>", "<TYPE>CDROM"))
        self.assertIn("no disk with an image", str(self.assertRaises(BadInput, lambda: vm.root)))


class NicTest(testtools.TestCase):
    def test_vlans_on_open_vswitch_and_nowhere_else(self) -> None:
        more = "<VLAN_ID>7</VLAN_ID><VLAN_TAGGED_ID>10,20-22</VLAN_TAGGED_ID>"
        switched = ("<BRIDGE_TYPE><![CDATA[linux]]>", "<BRIDGE_TYPE>openvswitch")
        (nic,) = translate.nics(machine(switched, ("<NIC>", f"<NIC>{more}")))
        self.assertEqual((7, {10, 20, 21, 22}), (nic.vlan, nic.tagged))
        for linux in ("", "<FILTER_MAC_SPOOFING>YES</FILTER_MAC_SPOOFING>", "<CVLANS>1</CVLANS>"):
            (nic,) = translate.nics(machine(("<NIC>", f"<NIC>{more}{linux}")))
            self.assertEqual((None, frozenset()), (nic.vlan, nic.tagged))
            if linux:
                self.assertRaises(NotSupported, translate.nics, machine(switched, ("<NIC>", f"<NIC>{linux}")))
        self.assertRaises(BadInput, machine, ("<NIC>", "<NIC><VLAN_TAGGED_ID>1;2</VLAN_TAGGED_ID>"))

    def test_a_recorded_nic(self) -> None:
        self.assertEqual((BridgedNic("eth0", "br0", "one-1-0", "02:00:0a:63:00:0a"),), translate.nics(machine()))

    def test_limits_and_mtu(self) -> None:
        limits = "<NIC><INBOUND_AVG_BW>125</INBOUND_AVG_BW><OUTBOUND_AVG_BW>250</OUTBOUND_AVG_BW><MTU>9000</MTU>"
        (nic,) = translate.nics(machine(("<NIC>", limits)))
        self.assertEqual((1_000_000, 2_000_000, 9000), (nic.received, nic.sent, nic.mtu))

    def test_a_host_interface_that_is_not_the_vms_is_refused(self) -> None:
        for changes, words in ((("[one-1-0]", "[eth0]"), "must be named eth0"),
                               (("<BRIDGE><![CDATA[br0]]></BRIDGE>", ""), "no BRIDGE")):
            self.assertIn(words, str(self.assertRaises(BadInput, translate.nics, machine(changes))))
