# SPDX-License-Identifier: Apache-2.0
"""Test ports over an engine in memory and a directory for /sys/class/net; root's and os-vif's work is recorded."""

import pathlib
from typing import Any
from unittest import mock

import fixtures
import nova.conf
import testtools
from nova import exception, objects
from nova.network import model

from containerhost import errors
from containerhost.engines.contract import ContainerState, Status
from containerhost.engines.network import veth
from containerhost.engines.spec import ContainerSpec, Cpu, Memory, Nic, RootDisk
from containerhost.inventory.scan import HostView
from containerhost.linux.sysfs import Host
from nova_lxd_ext.instance import labels
from nova_lxd_ext.instance.requested import NOTHING, RequestedResources
from nova_lxd_ext.network import vifconfig
from nova_lxd_ext.network.vifevents import VifEvents
from nova_lxd_ext.network.vifs import Ports
from tests.unit.nova import fakes, ports, records
from tests.unit.nova.ports import FIRST, HOST_END, INNER_END, MAC, SECOND

OTHER = "6b6f6f1e-34b9-4fd4-9e17-0f2e0b1f6c11"
PLUGGED = ("plug", records.UUID, FIRST)
UNPLUGGED = ("unplug", records.UUID, FIRST)


class PortsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.MonkeyPatch("containerhost.engines.network.veth.RETURN_TIMEOUT", 0.05))
        self.log: list[tuple[Any, ...]] = []
        self.engine, self.plugs, self.direct = fakes.FakeEngine(), ports.Plugs(self.log), mock.Mock()
        self.direct.attach_all.return_value = {}
        self.ports = Ports(self.engine, veth.Veths(ports.Recorder(self.log), Host(self.root)), self.plugs, self.direct,
                           VifEvents(nova.conf.CONF, None))
        self.server = records.instance()

    def interface(self, name: str, alias: str = "") -> None:
        directory = self.root / veth.DIRECTORY.lstrip("/") / name
        directory.mkdir(parents=True)
        (directory / "ifalias").write_text(f"{alias}\n")

    def there(self, port: model.VIF, owner: str = records.UUID, away: bool = False) -> None:
        """The host as it is with a port plugged."""
        self.interface(vifconfig.host_end(port), vifconfig.mark(owner, port))
        if not away:
            self.interface(vifconfig.inner_end(port))

    def requested(self, *vifs: model.VIF) -> RequestedResources:
        return RequestedResources.of(model.NetworkInfo(vifs))

    def container(self, *parts: Nic, status: Status = Status.RUNNING) -> ContainerState:
        name = self.server.name
        self.engine.specs[name] = ContainerSpec(name, "image", Cpu(1), Memory(1), RootDisk("pool"), parts=parts,
                                                labels=labels.of(self.server))
        self.engine.statuses[name] = status
        return self.engine.container(name)

    def did(self) -> list[str]:
        return [entry[0] for entry in self.log]


class TenantsAliasTest(PortsTest):
    """The container's end of a pair, and a function, come back to the host with the alias that the tenant gave them."""

    def setUp(self) -> None:
        super().setUp()
        self.other = vifconfig.mark(OTHER, ports.vif(SECOND, type="ovs", details={"ovs_hybrid_plug": True}))
        self.there(ports.vif(), away=True)

    def test_is_no_mark_of_a_server_that_is_gone(self) -> None:
        for name, alias in ((INNER_END, self.other), ("enp3s0", f"{vifconfig.owners_mark(OTHER)}nonsense")):
            self.interface(name, alias)
        self.ports.reconcile([self.container()])
        self.assertEqual([], self.log)

    def test_keeps_no_server_from_being_deleted(self) -> None:
        self.interface(INNER_END, f"{vifconfig.owners_mark(OTHER)}nonsense")
        self.interface("enp3s0", vifconfig.owners_mark(records.UUID))
        self.interface("enp4s0", vifconfig.owners_mark(records.UUID).strip() + " x")
        self.ports.release_all(self.server, NOTHING, HostView())
        self.assertEqual([UNPLUGGED, ("remove", HOST_END)], self.log)

    def test_pauses_no_other_servers_interface(self) -> None:
        self.interface("enp3s0", vifconfig.mark(records.UUID, ports.vif()))
        self.ports.pause(self.server)
        self.assertEqual([("down", HOST_END)], self.log)


class SupplierTest(PortsTest):
    def test_a_port_is_made_then_plugged(self) -> None:
        parts = self.ports.attach_all(self.server, self.requested(ports.vif()), HostView())
        self.assertEqual((Nic("eth0", INNER_END, MAC, 1450),), parts)
        self.assertEqual(["unplug", "make", "checksums", "plug"], self.did())

    def test_one_that_is_there_is_only_plugged(self) -> None:
        self.there(ports.vif())
        self.ports.attach_all(self.server, self.requested(ports.vif()), HostView())
        self.assertEqual([("up", HOST_END), PLUGGED], self.log)

    def test_direct_ports_keep_their_place(self) -> None:
        grant = mock.sentinel.grant
        self.direct.attach_all.return_value = {FIRST: grant}
        parts = self.ports.attach_all(self.server, self.requested(ports.direct(), ports.vif(SECOND)), HostView())
        self.assertEqual([grant, "eth1"], [parts[0], parts[1].name])
        self.direct.attach_all.assert_called_once_with(self.server, [ports.direct()], {FIRST: "eth0", SECOND: "eth1"},
                                                       mock.ANY)

    def test_a_hybrid_port_and_a_limit(self) -> None:
        limits = (1_000_000, 1_000_000, 100_000)
        for direction, expected in (("inbound", ("shape", HOST_END, *limits)),
                                    ("outbound", ("shape sent", HOST_END, "ifbce531f90-19", *limits))):
            server = records.instance(extra_specs={f"quota:vif_{direction}_average": "1000"})
            self.ports.attach_all(server, self.requested(ports.vif()), HostView())
            self.assertEqual(expected, self.log[-1])

    def test_refused_before_anything_changes(self) -> None:
        limited = records.instance(extra_specs={"quota:vif_inbound_average": "1000"})
        for server, port, words in ((self.server, ports.vif(type="vhostuser"), "vhostuser"),
                                    (limited, ports.direct(), "container's own")):
            with self.subTest(words):
                error = self.assertRaises(errors.SpecError, self.ports.require_possible, server, self.requested(port),
                                          HostView())
                self.assertIn(words, str(error))
        self.assertEqual([], self.log)

    def test_taken_off_from_what_nova_knows(self) -> None:
        self.there(ports.vif())
        self.ports.release_all(self.server, self.requested(ports.vif()), HostView())
        self.assertEqual([UNPLUGGED, ("remove", HOST_END)], self.log[:2])

    def test_taken_off_from_what_is_on_the_host(self) -> None:
        self.there(ports.vif())
        self.there(ports.vif(SECOND), owner=OTHER)
        self.ports.release_all(self.server, NOTHING, HostView())
        self.assertEqual([UNPLUGGED, ("remove", HOST_END)], self.log)

    def test_a_port_that_was_refused_has_nothing_to_take_off(self) -> None:
        self.ports.release_all(self.server, self.requested(ports.vif(type="binding_failed")), HostView())
        self.assertEqual([], self.log)

    def test_a_switch_that_is_away_is_told_and_the_marks_stay(self) -> None:
        self.there(ports.vif())
        self.plugs.broken = True
        self.assertRaises(errors.HostActionFailed, self.ports.release_all, self.server,
                          self.requested(ports.vif()), HostView())
        self.assertEqual([], self.log)

    def test_ports_of_servers_that_are_gone(self) -> None:
        self.there(ports.vif())
        self.there(ports.vif(SECOND), owner=OTHER)
        self.interface("eth0", "uplink")
        self.ports.reconcile([self.container()])
        self.assertEqual([("unplug", OTHER, SECOND), ("remove", f"tap{SECOND}"[:14])], self.log)

    def test_a_frozen_server_is_silent(self) -> None:
        self.there(ports.vif(), away=True)
        self.there(ports.vif(SECOND), owner=OTHER, away=True)
        self.ports.pause(self.server)
        self.ports.resume(self.server)
        self.assertEqual([("down", HOST_END), ("up", HOST_END)], self.log)


class NovaTest(PortsTest):
    def test_at_the_start_of_nova_compute_a_running_servers_port_is_plugged_again(self) -> None:
        self.there(ports.vif(), away=True)
        self.ports.plug(self.server, model.NetworkInfo([ports.vif(), ports.vif(SECOND), ports.direct()]))
        self.assertEqual([PLUGGED], self.log)

    def test_what_cannot_be_plugged_is_novas_exception(self) -> None:
        self.there(ports.vif(), away=True)
        self.plugs.broken = True
        for port, words in ((ports.vif(), "away"), (ports.vif(type="binding_failed"), "agent")):
            error = self.assertRaises(exception.VirtualInterfacePlugException, self.ports.plug, self.server,
                                      model.NetworkInfo([port]))
            self.assertIn(words, str(error))

    def test_unplugged(self) -> None:
        self.there(ports.vif())
        self.ports.unplug(self.server, None)
        self.assertEqual([UNPLUGGED, ("remove", HOST_END)], self.log)


class HotTest(PortsTest):
    def interfaces(self) -> dict[str, str]:
        return dict(self.engine.container(self.server.name).interfaces)

    def test_attached_under_the_first_free_name(self) -> None:
        state = self.container(Nic("eth1", "lxdx"))
        self.assertEqual("eth0", self.ports.attach(self.server, state, ports.vif()))
        self.assertEqual({"eth1": "lxdx", "eth0": INNER_END}, self.interfaces())
        self.assertEqual(["make", "checksums", "plug"], self.did())

    def test_to_a_frozen_server_it_is_silent_from_the_start(self) -> None:
        self.there(ports.vif(SECOND), away=True)
        self.ports.attach(self.server, self.container(status=Status.FROZEN), ports.vif())
        self.assertIn(("down", f"tap{SECOND}"[:14]), self.log)

    def test_a_refusal_of_the_engine_leaves_nothing(self) -> None:
        state = self.container()
        self.engine.fail["attach"] = errors.EngineError("no")
        self.assertRaises(errors.EngineError, self.ports.attach, self.server, state, ports.vif())
        self.assertEqual({}, self.interfaces())
        self.assertEqual(UNPLUGGED, self.log[-1])

    def test_an_unknown_kind_changes_nothing(self) -> None:
        self.assertRaises(errors.SpecError, self.ports.attach, self.server, self.container(),
                          ports.vif(type="vhostuser"))
        self.assertEqual([], self.log)

    def test_detached_wherever_it_is(self) -> None:
        self.there(ports.vif(), away=True)
        self.container(Nic("eth3", INNER_END, MAC, 1450), Nic("eth1", "lxdx"))
        self.ports.detach(self.server, ports.vif())
        self.assertEqual({"eth1": "lxdx"}, self.interfaces())
        self.assertEqual([UNPLUGGED, ("remove", HOST_END)], self.log)

    def test_detached_already(self) -> None:
        self.container()
        self.ports.detach(self.server, ports.vif())
        self.assertEqual([UNPLUGGED], self.log)

    def test_deleted_while_the_server_boots(self) -> None:
        self.there(ports.vif())
        self.ports.detach(self.server, ports.vif())
        self.assertEqual([UNPLUGGED, ("remove", HOST_END)], self.log)

    def test_a_direct_port_goes_from_the_container_before_it_goes_back(self) -> None:
        self.container()
        self.direct.held.return_value = (mock.sentinel.grant, (mock.sentinel.other,))
        order = mock.Mock()
        order.attach_mock(self.direct.release, "release")
        with mock.patch.object(self.engine, "detach") as detach:
            order.attach_mock(detach, "detach")
            self.ports.detach(self.server, ports.direct())
        self.assertEqual([mock.call.detach(self.server.name, mock.sentinel.grant, (mock.sentinel.other,)),
                          mock.call.release(self.server, ports.direct(), None, self.direct.view())], order.mock_calls)

    def test_a_direct_port_whose_function_is_gone_is_detached_with_a_warning(self) -> None:
        log = self.useFixture(fixtures.FakeLogger())
        self.direct.held.return_value = (None, ())
        self.direct.lost.return_value = True
        self.container()
        self.ports.detach(self.server, ports.direct())
        self.assertIn("The host has lost the function of port", log.output)
        self.engine.statuses[self.server.name] = Status.STOPPED
        self.ports.detach(self.server, ports.direct())
        self.engine.specs.clear()
        self.ports.detach(self.server, ports.direct())
        self.assertEqual([mock.call(self.server, ports.direct(), None, self.direct.view())] * 3,
                         self.direct.release.mock_calls)

    def test_a_direct_port_is_attached(self) -> None:
        part = Nic("eth0", "x")
        self.direct.attach_all.return_value = {FIRST: part}
        self.ports.attach(self.server, self.container(), ports.direct())
        self.assertEqual({"eth0": "x"}, self.interfaces())
        self.assertIsInstance(self.server, objects.Instance)
