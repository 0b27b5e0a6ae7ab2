# SPDX-License-Identifier: Apache-2.0
import base64
import dataclasses

import testtools

from containerhost.engines.contract import ContainerState, InterfaceMetrics, Metrics, ServerInfo, Status
from containerhost.inventory import topology
from containerhost.inventory.scan import Inventory, scan
from containerhost.inventory.topology import MemoryUse, NumaNode
from containerhost.vendors.base import Use
from onedriver.node import probes
from onedriver.node.pcifilter import PciFilter
from onedriver.node.probes import Sample, Space
from tests.unit.containerhost import hosts

SERVER = ServerInfo("lxd", "5.0.2", ("x86_64",), "6.1", "node1")
MIB, GIB = 1 << 20, 1 << 30
NODE = NumaNode(1, frozenset({2, 3, 6, 7}), (frozenset({2, 6}), frozenset({3, 7})), 0, 64 * GIB, 60 * GIB,
                {2 * MIB: (1024, 1000)}, (21, 10))
METRICS = Metrics(Status.RUNNING, 7, 3, 5_000_000_000, 256 * MIB, 0, 0, {}, (
    InterfaceMetrics("eth0", "02:00:00:00:00:01", None, 10, 0, 0, 0, 20, 0, 0, 0),
    InterfaceMetrics("ib0", "02:00:00:00:00:02", None, 1, 0, 0, 0, 2, 0, 0, 0)))


def addresses(lines: list[str]) -> list[str]:
    return [line.split('"')[1] for line in lines]


class HostTest(testtools.TestCase):
    def test_what_seldom_changes(self) -> None:
        host = hosts.shared("small")
        lines = probes.host_system("lxdone", "lxd", SERVER, topology.read(host), scan(host), (), (),
                                   PciFilter()).splitlines()
        for line in ('HYPERVISOR="lxdone"', 'HOSTNAME="node1"', 'TOTALCPU="3200"',
                     f'TOTALMEMORY="{128 * GIB // 1024}"'):
            self.assertIn(line, lines)
        self.assertEqual({"CORE": 16, "HUGEPAGE": 4, "MEMORY_NODE": 2, "PCI": 6},
                         {name: sum(line.startswith(f"{name}=[") for line in lines)
                          for name in ("CORE", "HUGEPAGE", "MEMORY_NODE", "PCI")})

    def test_a_node(self) -> None:
        self.assertEqual(['HUGEPAGE=[ NODE_ID="1", SIZE="2048", PAGES="1024" ]',
                          'CORE=[ NODE_ID="1", ID="2", CPUS="2,6" ]', 'CORE=[ NODE_ID="1", ID="3", CPUS="3,7" ]',
                          'MEMORY_NODE=[ NODE_ID="1", TOTAL="67108864", DISTANCE="1" ]'],
                         list(probes.numa_system([dataclasses.replace(NODE, distances=(10,))])))

    def test_nodes_in_the_order_of_their_distance_whatever_their_numbers(self) -> None:
        self.assertEqual("8 0", probes.nearest_first(dataclasses.replace(NODE, id=8, distances=(21, 10)), (0, 8)))

    def test_what_changes_all_the_time(self) -> None:
        text = probes.host_monitor(MemoryUse(4 * GIB, GIB), 8, 0.25, (5, 6), [NODE])
        self.assertEqual(['USEDCPU="200"', 'FREECPU="600"', 'USEDMEMORY="1048576"', 'FREEMEMORY="3145728"', 'NETRX="5"',
                          'NETTX="6"', 'HUGEPAGE=[ NODE_ID="1", SIZE="2048", FREE="1000" ]',
                          'MEMORY_NODE=[ NODE_ID="1", FREE="62914560", USED="4194304" ]'], text.splitlines())
        self.assertIn('FREECPU="0"', probes.host_monitor(MemoryUse(1, 1), 8, 1.7, (0, 0), []))

    def test_datastores(self) -> None:
        self.assertEqual(['DS_LOCATION_TOTAL_MB="10"', 'DS_LOCATION_USED_MB="4"', 'DS_LOCATION_FREE_MB="6"',
                          'DS=[ ID="0", TOTAL_MB="10", USED_MB="1", FREE_MB="6" ]'],
                         probes.datastores(Space(-1, 10 * MIB, 4 * MIB, 6 * MIB),
                                           [Space(0, 10 * MIB, MIB, 6 * MIB)]).splitlines())


class PciTest(testtools.TestCase):
    def reported(self, name: str, elsewhere=(), filters=("*:*:*",), own=()) -> list[str]:
        return addresses(list(probes.pci(scan(hosts.shared(name)), own, elsewhere, PciFilter(filters))))

    def test_gpus_and_virtual_functions_and_not_what_these_are_parts_of(self) -> None:
        inventory = scan(hosts.shared("small"))
        parents = {device.parent for device in inventory.devices if device.parent}
        expected = [device.id for device in inventory.devices if device.id not in parents]
        self.assertEqual(expected, [address[:10] + "." + address[11:] for address in self.reported("small")])
        self.assertIn("0000:3b:00:0", self.reported("small"))
        self.assertNotIn("0000:5e:00:0", self.reported("small"))

    def test_vendor_is_named_by_its_plugin(self) -> None:
        inventory = scan(hosts.shared("mixed"))
        expected = {"10de": "NVIDIA Corporation", "1002": "Advanced Micro Devices, Inc. [AMD/ATI]",
                    "8086": "Intel Corporation", "15b3": "Mellanox Technologies"}
        unknown = dataclasses.replace(inventory.devices[0], vendor_id="abcd")
        self.assertEqual({device.vendor_id for device in inventory.devices}, set(expected))
        for device in (*inventory.devices, unknown):
            self.assertEqual(expected.get(device.vendor_id, "abcd"),
                             probes.pci_attributes(device)["VENDOR_NAME"])

    def test_slices_instead_of_their_gpu(self) -> None:
        inventory = scan(hosts.shared("mixed"))
        cut = Inventory(tuple(dataclasses.replace(device, slice=dataclasses.replace(device.slice, profile="1g.5gb"))
                              if device.slice else device for device in inventory.devices))
        found = addresses(list(probes.pci(cut, (), (), PciFilter())))
        slices = [address for address in found if ":mig" in address]
        self.assertGreater(len(slices), 1)
        self.assertFalse({address.rpartition(":mig")[0] for address in slices} & set(found))

    def test_slice_of_unknown_profile_is_left_out_unless_a_vm_has_it(self) -> None:
        self.assertFalse([address for address in self.reported("mixed") if ":mig" in address])
        self.assertIn("0000:3c:00:0:mig1", self.reported("mixed", own={"0000:3c:00.0/gi1/ci0"}))

    def test_what_cannot_be_given_away_is_left_out(self) -> None:
        self.assertNotIn("0000:3b:00:0", self.reported("small", elsewhere={"0000:3b:00.0"}))
        self.assertIn("0000:af:00:0", self.reported("small", elsewhere={"0000:3b:00.0"}))
        unwell = {device.id for device in scan(hosts.shared("broken")).devices if not device.healthy}
        self.assertGreater(len(unwell), 0)
        self.assertFalse(unwell & {address[:10] + "." + address[11:] for address in self.reported("broken")})

    def test_what_a_vm_has_stays_reported_well_or_not(self) -> None:
        self.assertNotIn("0000:3c:00:0", self.reported("broken"))
        self.assertIn("0000:3c:00:0", self.reported("broken", own={"0000:3c:00.0"}))

    def test_faults_of_a_vms_devices(self) -> None:
        self.assertEqual({}, probes.fault_values(()))
        self.assertEqual({"DEVICE_FAULTS": "a: x, b: y"}, probes.fault_values(("a: x", "b: y")))

    def test_only_what_the_administrator_wants(self) -> None:
        self.assertEqual(["0000:3b:00:0", "0000:af:00:0"], self.reported("small", filters=["10DE:*:*"]))
        self.assertEqual([], self.reported("small", filters=[]))
        for more in (PciFilter(short_addresses=["3b:00.0"]), PciFilter(["10de:*"], ["3b:00.0", "5e:00.1"])):
            found = addresses(list(probes.pci(scan(hosts.shared("small")), (), (), more)))
            self.assertEqual(["0000:3b:00:0"], found)
        named = probes.pci(scan(hosts.shared("small")), (), (), PciFilter(names=["virtual function"]))
        self.assertEqual(4, len(list(named)))

    def test_attributes_of_a_gpu(self) -> None:
        reported = probes.pci(scan(hosts.shared("small")), (), (), PciFilter(["10de:20b0:0302"]))
        (line,) = [line for line in reported if "3b:00" in line]
        for part in ('ADDRESS="0000:3b:00:0"', 'SHORT_ADDRESS="3b:00.0"', 'BUS="3b"', 'SLOT="00"', 'FUNCTION="0"',
                     'VENDOR="10de"', 'DEVICE="20b0"', 'CLASS="0302"', 'TYPE="10de:20b0:0302"', 'NUMA_NODE="0"',
                     'CLASS_NAME="3D controller"'):
            self.assertIn(part, line)


class VmTest(testtools.TestCase):
    def state(self, number: int, status: Status = Status.RUNNING, **labels: str) -> ContainerState:
        return ContainerState(f"one-{number}", status, labels or {"one.vm": str(number)})

    def test_states(self) -> None:
        states = [self.state(1), self.state(2, Status.FROZEN), self.state(3, Status.STOPPED),
                  self.state(4, Status.ERROR), self.state(5, **{"nova.uuid": "x"})]
        self.assertEqual(['VM=[ ID="1", DEPLOY_ID="one-1", STATE="RUNNING" ]',
                          'VM=[ ID="2", DEPLOY_ID="one-2", STATE="SUSPENDED" ]',
                          'VM=[ ID="3", DEPLOY_ID="one-3", STATE="POWEROFF" ]',
                          'VM=[ ID="4", DEPLOY_ID="one-4", STATE="FAILURE" ]'], probes.vm_status(states).splitlines())
        self.assertEqual('TOTAL_WILDS="1"\nWILDS="one-5"', probes.wilds(states))
        self.assertEqual("", probes.wilds(states[:4]))

    def test_every_state_of_a_container_has_one(self) -> None:
        self.assertEqual(set(Status), set(probes.STATES))

    def test_use_of_a_vm(self) -> None:
        values = probes.vm_values(METRICS, 12.0, Sample(7, 2_000_000_000, 10.0))
        self.assertEqual({"MEMORY": 262144, "NETRX": 11, "NETTX": 22, "CPU": 150}, values)
        line = probes.vm_monitor(self.state(1), values)
        self.assertTrue(line.startswith('VM=[ ID="1", DEPLOY_ID="one-1", MONITOR="'))
        self.assertIn(b'CPU="150"\n', base64.b64decode(line.split('MONITOR="')[1].split('"')[0]))

    def test_cpu_is_not_told_over_a_restart(self) -> None:
        for before in (None, Sample(6, 0, 10.0), Sample(7, 0, 12.0), Sample(7, 9_000_000_000, 10.0),
                       Sample(7, 0, 5000.0)):
            self.assertNotIn("CPU", probes.vm_values(METRICS, 12.0, before))

    def test_the_root_disk_where_the_pool_tells(self) -> None:
        self.assertEqual("", probes.disk_values(0))
        disks = probes.disk_values(3 * MIB + 1)
        self.assertEqual('DISK_SIZE=[ ID="0", SIZE="4" ]', disks)
        line = probes.vm_monitor(self.state(1), {"CPU": 1}, disks)
        self.assertEqual(f'CPU="1"\n{disks}\n', base64.b64decode(line.split('MONITOR="')[1].split('"')[0]).decode())

    def test_gpus_of_a_vm(self) -> None:
        self.assertEqual({"GPU_COUNT": 2, "GPU_UTILIZATION": 50, "GPU_MEMORY_UTILIZATION": 30, "GPU_MEMORY_FREE": 3072,
                          "GPU_POWER_USAGE": 301},
                         probes.gpu_values([Use(100, 50, GIB, 250.6), Use(0, 10, 2 * GIB, 50.0)]))
        self.assertEqual({}, probes.gpu_values([]))
        self.assertEqual({"GPU_COUNT": 1}, probes.gpu_values([None]))
        self.assertEqual({"GPU_COUNT": 2, "GPU_MEMORY_FREE": 3072},
                         probes.gpu_values([Use(None, None, GIB, None), Use(1, 1, 2 * GIB, 5.0)]))
