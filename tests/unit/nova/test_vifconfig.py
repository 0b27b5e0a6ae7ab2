# SPDX-License-Identifier: Apache-2.0
from typing import Any

import os_vif
import testtools
from nova.network import model

from containerhost import errors
from containerhost.engines.network.veth import Pair, Shape
from containerhost.engines.spec import Nic
from nova_lxd_ext.network import vifconfig
from nova_lxd_ext.network.vifconfig import Kind
from tests.unit.nova import ports, records
from tests.unit.nova.ports import FIRST, HOST_END, INNER_END, MAC, SECOND


class KindTest(testtools.TestCase):
    def test_what_a_container_can_have(self) -> None:
        table: list[tuple[dict[str, Any], Kind]] = [
            ({}, Kind.SWITCHED),
            ({"details": {"ovs_hybrid_plug": True}}, Kind.HYBRID),
            ({"type": "tap"}, Kind.PLAIN),
            ({"type": "hw_veb", "vnic_type": "direct"}, Kind.DIRECT),
            ({"type": "hostdev_physical", "vnic_type": "direct-physical"}, Kind.DIRECT),
            ({"type": "ib_hostdev", "vnic_type": "direct"}, Kind.DIRECT)]
        for changes, expected in table:
            with self.subTest(str(changes)):
                self.assertEqual(expected, vifconfig.kind(ports.vif(**changes)))

    def test_what_it_cannot(self) -> None:
        table: list[tuple[dict[str, Any], str]] = [
            ({"type": "bridge"}, "no more"), ({"type": "vhostuser"}, "virtual machine monitor"),
            ({"type": "macvtap", "vnic_type": "macvtap"}, "--vnic-type direct"),
            ({"type": "binding_failed"}, "agent"), ({"type": "unbound"}, "not bound"),
            ({"type": "ivs"}, "ovs and tap"), ({"vnic_type": "direct"}, "ovs and tap"),
            ({"type": "hw_veb", "vnic_type": "macvtap"}, "ovs and tap"), ({"vnic_type": "vdpa"}, "ovs and tap"),
            ({"type": "hw_veb"}, "ovs and tap")]
        for changes, words in table:
            with self.subTest(str(changes)):
                error = self.assertRaises(errors.SpecError, vifconfig.kind, ports.vif(**changes))
                self.assertIn(words, str(error))
                self.assertIn(FIRST, str(error))
                self.assertFalse(vifconfig.has_pair(ports.vif(**changes)))


class InterfacesTest(testtools.TestCase):
    def test_a_pair_is_named_after_its_port(self) -> None:
        self.assertEqual(
            Pair(HOST_END, INNER_END, MAC, f"nova-lxd-ext {records.UUID} {FIRST} switched br-int netdev", 1450,
                 switched=True, software_checksums=True),
            vifconfig.pair(records.UUID, ports.vif()))

    def test_the_host_keeps_an_interface_that_an_agent_routes(self) -> None:
        pair = vifconfig.pair(records.UUID, ports.vif(type="tap", details={}, bridge=None, mtu=None, devname=None))
        self.assertEqual((HOST_END, False, False, None),
                         (pair.host_end, pair.switched, pair.software_checksums, pair.mtu))

    def test_a_name_that_is_none(self) -> None:
        for name in ("../../x", "-j", "a b", "x" * 16):
            self.assertRaises(errors.SpecError, vifconfig.host_end, ports.vif(devname=name))

    def test_the_other_end_is_the_containers(self) -> None:
        self.assertEqual(Nic("eth1", INNER_END, MAC, 1450), vifconfig.nic(ports.vif(), "eth1"))

    def test_names_follow_the_ports_order(self) -> None:
        vifs = [ports.vif("a"), ports.vif("b", type="ib_hostdev", vnic_type="direct"), ports.vif("c")]
        self.assertEqual({"a": "eth0", "b": "ib0", "c": "eth1"}, vifconfig.names(vifs))

    def test_one_more_takes_the_first_free_name(self) -> None:
        for taken, expected in (((), "eth0"), (("eth1", "ib0"), "eth0"), (("eth0", "eth1"), "eth2")):
            self.assertEqual(expected, vifconfig.free_name(ports.vif(), taken))


class MarkTest(testtools.TestCase):
    def test_a_port_can_be_unplugged_from_its_mark(self) -> None:
        for port in (ports.vif(), ports.vif(SECOND, details={"ovs_hybrid_plug": True}),
                     ports.vif(type="tap", bridge=None, details={})):
            with self.subTest(vifconfig.kind(port)):
                owner, found = vifconfig.remembered(port["devname"], vifconfig.mark(records.UUID, port))
                self.assertEqual((records.UUID, port["id"], vifconfig.kind(port), vifconfig.host_end(port),
                                  port["network"]["bridge"], vifconfig.datapath(port)),
                                 (owner, found["id"], vifconfig.kind(found), vifconfig.host_end(found),
                                  found["network"]["bridge"], vifconfig.datapath(found)))

    def test_a_mark_of_a_later_release_may_have_more_words(self) -> None:
        text = vifconfig.mark(records.UUID, ports.vif())
        self.assertEqual(vifconfig.remembered("tap1", text), vifconfig.remembered("tap1", f"{text} more words"))

    def test_a_mark_that_is_none(self) -> None:
        for text in ("", "nova-lxd-ext x y", "nova-lxd-ext a b strange br-int -"):
            self.assertRaises(errors.SpecError, vifconfig.remembered, "tap1", text)


class ShapeTest(testtools.TestCase):
    def test_limits(self) -> None:
        table: list[tuple[dict[str, str], Shape | None]] = [
            ({"quota:disk_read_bytes_sec": "1"}, None),
            ({"average": "1000"}, Shape(1_000_000, 1_000_000, 100_000)),
            ({"average": "10", "peak": "20", "burst": "5"}, Shape(10_000, 20_000, 5_000)),
            ({"average": "10", "peak": "5"}, Shape(10_000, 10_000, 16_000))]
        for keys, expected in table:
            with self.subTest(str(keys)):
                specs = {key if ":" in key else f"quota:vif_inbound_{key}": value for key, value in keys.items()}
                self.assertEqual(expected, vifconfig.shape(specs, vifconfig.INBOUND))

    def test_what_cannot_be_held(self) -> None:
        for key, value, words in (("inbound_average", "fast", "whole number"), ("inbound_average", "0", "at least 1"),
                                  ("inbound_peak", "5", "inbound_average"), ("outbound_burst", "5", "outbound_average"),
                                  ("outbound_average", "5", "QoS")):
            with self.subTest(key):
                error = self.assertRaises(errors.SpecError, vifconfig.require_holdable, ports.vif(),
                                          {f"quota:vif_{key}": value})
                self.assertIn(words, str(error))

    def test_what_the_kernel_takes_can_be_held(self) -> None:
        for details, type_ in (({"ovs_hybrid_plug": True}, "ovs"), ({}, "tap")):
            vifconfig.require_holdable(ports.vif(type=type_, details=details), {"quota:vif_outbound_average": "5"})


class OsVifTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        os_vif.initialize()

    def test_the_host_end_becomes_the_switchs_port(self) -> None:
        found = vifconfig.osvif(ports.vif(details={"ovs_create_tap": True}))
        self.assertEqual((HOST_END, "br-int", FIRST, True), (
            found.vif_name, found.network.bridge, found.port_profile.interface_id, found.port_profile.create_port))
        self.assertFalse(getattr(found.port_profile, "create_tap", False))

    def test_hybrid(self) -> None:
        port = ports.vif(details={"ovs_hybrid_plug": True})
        self.assertEqual(vifconfig.hybrid_bridge(port), vifconfig.osvif(port).bridge_name)

    def test_a_remembered_port_can_be_unplugged(self) -> None:
        _, port = vifconfig.remembered(HOST_END, vifconfig.mark(records.UUID, ports.vif()))
        found = vifconfig.osvif(port)
        self.assertEqual((HOST_END, "br-int", "netdev"),
                         (found.vif_name, found.network.bridge, found.port_profile.datapath_type))

    def test_others_need_nothing_of_it(self) -> None:
        self.assertIsNone(vifconfig.osvif(ports.vif(type="tap")))
        self.assertIsNone(vifconfig.osvif(ports.direct()))


class AwaitedTest(testtools.TestCase):
    def test_only_ports_that_are_down(self) -> None:
        vifs = model.NetworkInfo([ports.vif(), ports.vif(SECOND, active=False)])
        self.assertEqual([("network-vif-plugged", SECOND)], vifconfig.awaited(vifs))
