# SPDX-License-Identifier: Apache-2.0
import datetime

import testtools

from containerhost.engines.contract import ContainerState, InterfaceMetrics, Metrics, Status
from nova_lxd_ext.server import diagnostics
from tests.unit.nova import records

NOW = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.UTC)
ETH = InterfaceMetrics("eth0", "fa:16:3e:00:00:01", "tap1", 1, 2, 3, 4, 5, 6, 7, 8)
IB = ETH._replace(name="ib0", mac=":".join(["80"] * 20), host_name=None)
METRICS = Metrics(Status.RUNNING, 4711, 12, 3_000_000_000, 64 * 2 ** 20, 80 * 2 ** 20, 1024, {"root": 5 * 2 ** 20},
                  (ETH, IB))


class TestDiagnostics(testtools.TestCase):
    def standard(self, started=None, **changes):
        state = ContainerState("instance-1", Status.RUNNING, {}, last_used=started)
        return diagnostics.standard(records.instance(**changes), state, METRICS, "running", "incus", NOW)

    def test_standard(self):
        found = self.standard(NOW - datetime.timedelta(minutes=5), config_drive="True")
        self.assertEqual(("running", "incus", "linux", 300, True),
                         (found.state, found.hypervisor, found.hypervisor_os, found.uptime, found.config_drive))
        self.assertEqual((2, 2, 1), (found.num_cpus, found.num_nics, found.num_disks))
        self.assertEqual((512, 64), (found.memory_details.maximum, found.memory_details.used))
        self.assertEqual(3_000_000_000, found.cpu_details[0].time)
        ethernet, infiniband = found.nic_details
        self.assertEqual((ETH.mac, 1, 2, 3, 4), (ethernet.mac_address, ethernet.rx_octets, ethernet.rx_packets,
                                                 ethernet.rx_errors, ethernet.rx_drop))
        self.assertEqual((5, 6, 7, 8), (ethernet.tx_octets, ethernet.tx_packets, ethernet.tx_errors, ethernet.tx_drop))
        self.assertIsNone(infiniband.mac_address)

    def test_never_started_and_clocks_apart(self):
        self.assertIsNone(self.standard().uptime)
        self.assertEqual(0, self.standard(NOW + datetime.timedelta(seconds=2)).uptime)

    def test_it_travels(self):
        """Through nova's RPC and out of the API's view."""
        from nova.api.openstack.compute.views import server_diagnostics
        found = self.standard()
        again = type(found).obj_from_primitive(found.obj_to_primitive())
        view = server_diagnostics.ViewBuilder().instance_diagnostics(again)
        self.assertEqual(("incus", 2), (view["hypervisor"], view["num_cpus"]))

    def test_broken_devices_are_told_in_both_forms(self):
        faults = ("0000:3b:00.0: fallen off the bus", "0000:5e:00.1: gone")
        self.assertEqual(", ".join(faults), diagnostics.plain(METRICS, faults)["devicefaults"])
        self.assertNotIn("devicefaults", diagnostics.plain(METRICS))
        state = ContainerState("instance-1", Status.RUNNING, {})
        found = diagnostics.standard(records.instance(), state, METRICS, "running", "lxd", NOW, faults)
        self.assertEqual(f"linux, devicefaults: {', '.join(faults)}", found.hypervisor_os)

    def test_plain(self):
        found = diagnostics.plain(METRICS)
        self.assertEqual((3_000_000_000, 65536, 81920, 1, 12, 5 * 2 ** 20), tuple(found[name] for name in (
            "cpu0_time", "memory", "memory-peak", "memory-swap", "processes", "root_used")))
        self.assertEqual([1, 2, 3, 4, 5, 6, 7, 8], [found[f"ib0_{name}"] for name in (
            "rx", "rx_packets", "rx_errors", "rx_drop", "tx", "tx_packets", "tx_errors", "tx_drop")])
