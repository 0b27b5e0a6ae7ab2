# SPDX-License-Identifier: Apache-2.0
import testtools

from lxdone import translate
from lxdone.conf import Options
from onedriver import document, graphics, vm
from onedriver.errors import BadInput, NotSupported
from onedriver.node import context
from onedriver.section import MOST_NAMES
from onedriver.vm import MIB, NumaNode
from tests.unit.onedriver.samples import changed, sample, template_with

PINNED = ("<TOPOLOGY><PIN_POLICY>CORE</PIN_POLICY><HUGEPAGE_SIZE>2</HUGEPAGE_SIZE></TOPOLOGY>"
          "<NUMA_NODE><CPUS>1,3</CPUS><MEMORY>1048576</MEMORY><MEMORY_NODE_ID>1</MEMORY_NODE_ID>"
          "<NODE_ID>1</NODE_ID><TOTAL_CPUS>2</TOTAL_CPUS></NUMA_NODE>")
NO_ADDRESS = ("<ADDRESS><![CDATA[0000:17:00:0]]></ADDRESS>", "")


def read(data: bytes) -> vm.Vm:
    return vm.vm(document.parse(data, "VM"))


class VmTest(testtools.TestCase):
    def test_a_recorded_vm(self) -> None:
        found = read(sample("deployment.xml"))
        self.assertEqual((1, 2, 200, 2, 2048 * MIB),
                         (found.id, found.lcm_state, found.cpu, found.vcpu, found.memory))
        self.assertEqual((None, 0, "node1"), (found.deploy_id, found.system_ds, found.host))
        (nic,), (pci,) = found.nics, found.pcis
        self.assertEqual((0, "02:00:0a:63:00:0a", "br0", "one-1-0", False),
                         (nic.id, nic.mac, nic.bridge, nic.target, nic.attach))
        self.assertEqual(("0000:17:00.0", "10de", "2330", "0302", 0),
                         (pci.chosen().device_id, pci.vendor, pci.device, pci.class_code, pci.id))
        self.assertEqual([(0, "FILE", 16 * MIB, False), (1, "FS", 4 * MIB, False)],
                         [(disk.id, disk.type, disk.size, disk.save) for disk in found.disks])
        self.assertEqual("ssh-ed25519 AAAA test", found.context["SSH_PUBLIC_KEY"])
        self.assertEqual(("NONE", None, ()), (found.topology.pin_policy, found.topology.hugepage, found.topology.nodes))

    def test_the_nic_to_attach_is_marked(self) -> None:
        message = document.parse(sample("attach_nic.xml"), "VMM_DRIVER_ACTION_DATA")
        found = vm.vm(message.find("VM"))
        self.assertEqual(["one-1-1"], [nic.target for nic in found.nics if nic.attach])

    def test_disk_to_attach_is_marked(self) -> None:
        data = changed("deployment.xml", ("<TARGET><![CDATA[sdc]]>", "<ATTACH>YES</ATTACH><TARGET><![CDATA[sdc]]>"))
        self.assertEqual([1], [disk.id for disk in read(data).disks if disk.attach])

    def test_snapshot_of_the_action(self) -> None:
        message = document.parse(sample("snapshot_revert.xml"), "VMM_DRIVER_ACTION_DATA")
        self.assertEqual({"snap-0"}, vm.vm(message.find("VM")).snapshots)

    def test_attributes_of_hpc(self) -> None:
        data = template_with("<HPC><JOB>j1</JOB><SHARED_MEMORY>64</SHARED_MEMORY><ELASTIC>YES</ELASTIC></HPC>")
        self.assertEqual({"JOB": "j1", "SHARED_MEMORY": "64", "ELASTIC": "YES"}, read(data).hpc)

    def test_pinning_and_huge_pages(self) -> None:
        topology = read(template_with(PINNED)).topology
        self.assertEqual(("CORE", 2 * MIB, (NumaNode(frozenset({1, 3}), 1),)),
                         (topology.pin_policy, topology.hugepage, topology.nodes))

    def test_a_device_the_scheduler_did_not_choose_is_refused(self) -> None:
        (pci,) = read(changed("deployment.xml", NO_ADDRESS)).pcis
        self.assertIn("--enforce", str(self.assertRaises(BadInput, pci.chosen)))

    def test_a_slice_by_its_address(self) -> None:
        data = changed("deployment.xml", ("0000:17:00:0]", "0000:17:00:0:mig3]"),
                       ("<VENDOR>", "<UUID>MIG-1-2</UUID><VENDOR>"))
        (pci,) = read(data).pcis
        self.assertEqual(("0000:17:00.0/gi3/ci0", "MIG-1-2"), (pci.chosen().device_id, pci.uuid))

    def test_products_of_slices_may_have_eight_digits(self) -> None:
        for text, expected in (("20B0", "20b0"), ("f3010018", "f3010018")):
            self.assertEqual(expected, read(template_with(f"<PCI><DEVICE>{text}</DEVICE></PCI>")).pcis[-1].device)
        for text in ("20b", "f30100", "f30100180"):
            self.assertRaises(BadInput, read, template_with(f"<PCI><DEVICE>{text}</DEVICE></PCI>"))

    def test_guids_in_either_form(self) -> None:
        more = "<PCI><NODE_GUID>0002:C903:0000:0001</NODE_GUID><PORT_GUID>00:02:c9:03:00:00:00:02</PORT_GUID></PCI>"
        pci = read(template_with(more)).pcis[-1]
        self.assertEqual(("0002:c903:0000:0001", "0002:c903:0000:0002"), (pci.node_guid, pci.port_guid))

    def test_what_a_function_may_send(self) -> None:
        for more, expected in (("", None), ("<OUTBOUND_AVG_BW>12500</OUTBOUND_AVG_BW>", 12500)):
            self.assertEqual(expected, read(template_with(f"<PCI>{more}</PCI>")).pcis[-1].sent)

    def test_attributes_of_the_driver_from_both_templates(self) -> None:
        data = changed("deployment.xml", ("<VMID>", "<LXD_A>1</LXD_A><VMID>"),
                       ("<MY_ATTR>", "<lxd_b>x y</lxd_b><MY_ATTR>"))
        self.assertEqual({"LXD_A": "1", "LXD_B": "x y"}, read(data).own)

    def test_fractions_of_cores(self) -> None:
        for text, share in (("0.1", 10), ("2", 200), ("1.25", 125), ("0.001", 1)):
            self.assertEqual(share, read(changed("deployment.xml", ("<CPU><![CDATA[2]]>", f"<CPU>{text}"))).cpu)

    def test_what_its_owner_may_change_later_refuses_no_action(self) -> None:
        data = changed("deployment.xml", ("<CONTEXT>", "<CONTEXT><MY-KEY>x</MY-KEY>"))
        self.assertEqual("x", read(data).context["MY-KEY"])

    def test_names_beyond_the_limit_are_not_read_and_refused_where_they_are_used(self) -> None:
        many = "".join(f"<N{number}/>" for number in range(5000))
        found = read(changed("deployment.xml", ("<CONTEXT>", f"<CONTEXT>{many}"),
                             ("<GRAPHICS>", f"<GRAPHICS>{many}"), ("<VMID>", many.replace("<N", "<LXD_N") + "<VMID>")))
        self.assertEqual([MOST_NAMES + 1] * 3, [len(found.context), len(found.graphics), len(found.own)])
        self.assertIn("more than 4096", str(self.assertRaises(BadInput, context.require_names, found.context)))
        self.assertIn("more than 4096", str(self.assertRaises(BadInput, graphics.vnc, found.id, found.graphics)))
        self.assertGreater(500, len(str(self.assertRaises(NotSupported, translate.security, found.own, Options()))))

    def test_first_of_two_attributes_of_one_name_counts(self) -> None:
        found = read(changed("deployment.xml", ("<CONTEXT>", "<CONTEXT><A>1</A><B> </B><A>2</A>")))
        self.assertEqual(("1", ""), (found.context["A"], found.context["B"]))

    def test_what_makes_no_sense_is_refused_by_name(self) -> None:
        for old, new, words in (
            ("<MEMORY><![CDATA[2048]]>", "<MEMORY>0", "MEMORY is '0'"),
            ("<MEMORY><![CDATA[2048]]></MEMORY>", "", "has no MEMORY"),
            ("<CPU><![CDATA[2]]>", "<CPU>-1", "CPU is '-1'"),
            ("<CPU><![CDATA[2]]>", "<CPU>nan", "CPU is 'nan'"),
            ("<VCPU><![CDATA[2]]>", "<VCPU>two", "VCPU is 'two'"),
            ("02:00:0a:63:00:0a]]></MAC><NAME>", "02:00]]></MAC><NAME>", "MAC is '02:00'"),
            ("[br0]", "[br0;reboot]", "BRIDGE is 'br0;reboot'"),
            ("[one-1-0]", "[../../x]", "TARGET is '../../x'"),
            ("[0000:17:00:0]", "[../../etc]", "PCI address '../../etc'"),
            ("<VENDOR><![CDATA[10de]]>", "<VENDOR>nvidia", "VENDOR is 'nvidia'"),
            ("<READONLY><![CDATA[NO]]>", "<READONLY>perhaps", "READONLY is 'perhaps'"),
            ("<ID>1</ID><UID>0</UID><GID>0</GID><UNAME>", "<UNAME>", "VM has no ID"),
        ):
            self.assertIn(words, str(self.assertRaises(BadInput, read, changed("deployment.xml", (old, new)))))
