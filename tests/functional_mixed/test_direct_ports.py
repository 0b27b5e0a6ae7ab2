# SPDX-License-Identifier: Apache-2.0
"""Ports with a network function of their own through nova's API; neutron's answers are nova's own fixture."""

from tests.functional.nova import base  # isort: skip

import contextlib
import copy
import json
import subprocess
from collections.abc import Callable
from typing import Any, ClassVar

from nova.tests.fixtures import neutron
from nova.tests.functional.api.client import OpenStackApiException

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.store import AllocationStore
from containerhost.devices.model import Device, LinkLayer, NodeUse, Role
from containerhost.inventory.scan import HostView, scan
from containerhost.privileged import Privileged
from tests import levels
from tests.fakehost.control import FakeHostControl
from tests.functional.holder import Holder
from tests.functional.nova import killing
from tests.functional.nova.interrupting import Interrupted
from tests.waiting import await_that

PF, IB_PF = "0000:31:00.0", "0000:5e:00.0"
VFS = 2  # that PF has
VLAN = 100
TIMEOUT = 60.0  # s
SILENCE = 5  # s after which the API gives up on a nova-compute that does not answer
FREE = {"address": "00:00:00:00:00:00", "vlan": 0}
NETWORKS = {"lan": "1b70879f-fd00-411e-8ea9-143e7820e61d", "fabric": "2b70879f-fd00-411e-8ea9-143e7820e61d"}


def children(address: str) -> list[Device]:
    return [device for device in scan().devices if device.parent == address and device.role is Role.VF]


class DirectPortServers(Interrupted):
    def setUp(self) -> None:
        super().setUp()
        for name, network in NETWORKS.items():
            self.neutron._networks[network] = neutron.NeutronFixture.network_2 | {
                "id": network, "name": name, "provider:physical_network": name}
        self.neutron._subnets[neutron.NeutronFixture.subnet_2["id"]] = neutron.NeutronFixture.subnet_2
        self.count = 0

    def _configure(self) -> None:
        super()._configure()
        specs = []
        for address, network in ((PF, "lan"), (IB_PF, "fabric")):
            function = children(address)[0]
            specs.append(json.dumps({"vendor_id": function.vendor_id, "product_id": function.product_id,
                                     "physical_network": network}))
        self.flags(device_spec=specs, alias=[], group="pci")

    def port(self, network: str = "lan", **changes: Any) -> dict[str, Any]:
        self.count += 1
        port = copy.deepcopy(neutron.NeutronFixture.sriov_port) | {
            "id": f"5460ee0c-ffbb-4e45-8d58-37bfceabd0{self.count:02}", "network_id": NETWORKS[network],
            "mac_address": f"52:54:00:1e:59:{self.count:02}", "binding:vif_details": {"vlan": VLAN}, **changes}
        self.neutron._ports[port["id"]] = port
        return port

    def mac(self, server: Any, name: str) -> str:
        return self.inside(server, "cat", f"/sys/class/net/{name}/address").output.strip()

    def of_physical_function(self) -> list[dict[str, Any]]:
        """Return what the physical function makes each VF use."""
        return [{"address": vf["address"], "vlan": vf.get("vlan_list", [{"vlan": 0}])[0]["vlan"]}
                for vf in self.shown()["vfinfo_list"]]

    def shown(self) -> dict[str, Any]:
        return json.loads(subprocess.run(["ip", "-j", "link", "show", "dev", scan().get(PF).netdev], check=True,
                                         capture_output=True, text=True).stdout)[0]


@levels.exhaustive("functions that come and go stay", tests=("test_ports_of_all_kinds_in_their_order",))
class DirectPortTest(DirectPortServers):
    def test_a_function_has_the_ports_mac_and_vlan_until_it_goes(self) -> None:
        port = self.port()
        server = self.with_ports(port)
        mine = {"address": port["mac_address"], "vlan": VLAN}
        restarts = (lambda: self._reboot_server(server, hard=True), lambda: self._stop_and_start(server))
        for act in (lambda: None, *levels.budget(gate=(levels.turn(restarts),), exhaustive=restarts)):
            act()
            self.assertEqual(port["mac_address"], self.mac(server, "eth0"))
            self.assertEqual([mine, FREE], sorted(self.of_physical_function(), key=lambda vf: -vf["vlan"]))
            self.assertEqual([server["id"]], list(self.held().values()))
        self._delete_server(server)
        self.assertEqual([FREE, FREE], self.of_physical_function())
        self.assert_nothing_left()

    @levels.exhaustive("units show it; functions that come and go remain")
    def test_a_paused_server_has_no_link(self) -> None:
        self.addCleanup(self.set_links, "auto")
        self.set_links("enable")  # what the operator has set comes back
        server = self.with_ports(self.port())
        for end in (lambda: self.act(server, "unpause", "ACTIVE"), lambda: self.ended_and_started(server),
                    lambda: self._delete_server(server)):
            self.assertEqual(["enable", "enable"], self.links_of_functions())
            self.act(server, "pause", "PAUSED")
            self.assertEqual(["disable", "enable"], self.links_of_functions())
            end()
        self.assertEqual(["enable", "enable"], self.links_of_functions())
        self.assert_nothing_left()

    def act(self, server: Any, action: str, state: str) -> None:
        self.api.post_server_action(server["id"], {action: None})
        self._wait_for_state_change(server, state)

    def ended_and_started(self, server: Any) -> None:
        """As when a host restarts under a paused server."""
        self.lxd.engine.stop(self.container(server).name, timeout=10, force=True)
        self._reboot_server(server, hard=True)

    def set_links(self, state: str) -> None:
        for vf in self.shown()["vfinfo_list"]:
            subprocess.run(["ip", "link", "set", "dev", scan().get(PF).netdev, "vf", str(vf["vf"]), "state", state],
                           check=True)

    def links_of_functions(self) -> list[str]:
        return sorted(vf["link_state"] for vf in self.shown()["vfinfo_list"])

    def test_functions_come_and_go_while_it_runs(self) -> None:
        ports = [self.port(), self.port()]
        server = self.with_ports(ports[0])
        self.attach_port(server, ports[1])
        self.assertEqual([port["mac_address"] for port in ports], [self.mac(server, f"eth{n}") for n in (0, 1)])
        self.assertEqual(2, len(self.held()))
        error = self.assertRaises(OpenStackApiException, self.attach_port, server, self.port())
        self.assertEqual(400, error.response.status_code)
        self.detach_port(server, ports[0])
        self.assertEqual(["eth1", "lo"], sorted(self.inside(server, "ls", "/sys/class/net").output.split()))
        self.assertEqual(1, len(self.held()))
        again = self.port()
        self.attach_port(server, again)
        self.assertEqual(again["mac_address"], self.mac(server, "eth0"))
        self._delete_server(server)
        self.assertEqual([FREE, FREE], self.of_physical_function())
        self.assert_nothing_left()

    @levels.exhaustive("units show it; functions that come and go remain")
    def test_one_that_a_process_uses_is_not_detached(self) -> None:
        port = self.port("fabric", **{"binding:vif_type": "ib_hostdev"})
        server = self.with_ports(port)
        node = next(node for held in self.held() for node in scan().get(held).nodes if node.use is NodeUse.OWN)
        pid = self.lxd.engine.metrics(self.container(server).name).pid
        holder = self.useFixture(Holder(f"/proc/{pid}/root{node.path}", (node.major, node.minor)))
        held = self.held()
        self.api.detach_interface(server["id"], port["id"])
        self.assert_told(f"is in use by {holder.users[0]}", "detach_interface", server)
        self.assertEqual(held, self.held())
        self.assertIn("ib0", self.inside(server, "ls", "/sys/class/net").output.split())
        self.assertEqual(f"{node.path}\n", self.inside(server, "ls", node.path).output)
        holder.end()
        self.detach_port(server, port)
        self.assertEqual({}, self.held())
        self._delete_server(server)
        self.assert_nothing_left()

    @levels.exhaustive("units show it; functions that come and go remain")
    def test_one_whose_function_vanished_is_detached(self) -> None:
        """LXD takes from a running container no interface that is gone: it forgets the function at the next start."""
        control, before_vfs = FakeHostControl.from_environment(), children(PF)
        port = self.port()
        server = self.with_ports(port)
        before = self.lxd.engine.metrics(self.container(server).name).pid
        ((held, _),) = self.held().items()
        control.set_num_vfs(PF, 0)
        self.addCleanup(control.set_num_vfs, PF, VFS)
        self.assertEqual(["lo"], self.inside(server, "ls", "/sys/class/net").output.split())
        self.detach_port(server, port)
        self.assertEqual(before, self.lxd.engine.metrics(self.container(server).name).pid)
        self._stop_server(server)
        self._start_server(server)
        self.assertEqual(["lo"], self.inside(server, "ls", "/sys/class/net").output.split())
        self._delete_server(server)
        store = AllocationStore(self.state / "owners")
        self.assertIn("this host has no device", store.records()[held].blocked or "")
        control.set_num_vfs(PF, VFS)
        DeviceAllocator(store, HostView, Privileged()).repair.clean(held)
        self.assertEqual({}, self.held())
        self.assertEqual([FREE, FREE], self.of_physical_function())
        self.assertEqual([(vf.id, vf.netdev, ()) for vf in before_vfs],
                         [(vf.id, vf.netdev, vf.health) for vf in children(PF)])

    def test_ports_of_all_kinds_in_their_order(self) -> None:
        infiniband = self.port("fabric", **{"binding:vif_type": "ib_hostdev", "mac_address": "52:54:00:1e:59:a1"})
        plain = self.port(**{"binding:vif_type": "tap", "binding:vnic_type": "normal"})
        direct = self.port()
        server = self.with_ports(plain, infiniband, direct)
        self.assertEqual([plain["mac_address"], direct["mac_address"]],
                         [self.mac(server, name) for name in ("eth0", "eth1")])
        function = next(scan().get(device) for device in self.held()
                        if scan().get(device).link_layer is LinkLayer.INFINIBAND)
        self.assertEqual("5254:0000:001e:59a1", function.rdma.port_guid)
        self.assertIn("ib0", self.inside(server, "ls", "/sys/class/net").output.split())
        self._delete_server(server)
        self.assert_nothing_left()


class InterruptedTest(DirectPortServers):
    options: ClassVar = {("lxd", "ready_timeout"): 60}

    def setUp(self) -> None:
        super().setUp()
        self.mine = self.port()
        self.the_server = self.with_ports(self.mine)
        self.before = self.lxd.engine.metrics(self.container(self.the_server).name).pid

    def assert_has(self, *ports: dict[str, Any]) -> None:
        """Check that it runs on and has these ports' functions, each once, and that no other server has them."""
        self.assertEqual(self.before, self.lxd.engine.metrics(self.container(self.the_server).name).pid)
        self.assertEqual([port["mac_address"] for port in ports],
                         [self.mac(self.the_server, f"eth{number}") for number in range(len(ports))])
        self.assertEqual([self.the_server["id"]] * len(ports), list(self.held().values()))

    @levels.exhaustive("EngineFaultTest restarts the daemon in the middle of a boot; units fail every step")
    def test_the_daemon_is_killed(self) -> None:
        """The port comes, or goes, all the same, or it is as it was and the next try does it."""
        server, more = self.the_server, self.port()
        for number in range(3):
            with self.subTest(number):
                self.restart_at("change container")
                try:
                    self.attach_port(server, more)
                except OpenStackApiException:
                    self.assert_has(self.mine)
                    self.attach_port(server, more)
                self.assert_has(self.mine, more)
                self.restart_at("change container")
                self.detach_port(server, more)
                self.assert_has(self.mine)
        self._delete_server(server)
        self.assert_nothing_left()


class KilledPortTest(DirectPortServers):
    """nova-compute killed (-9) while it attaches or detaches a port: nova counts it among the server's, and a
    detachment removes all there is; or nova does not, and nothing of it is left."""

    def setUp(self) -> None:
        super().setUp()
        self.flags(rpc_response_timeout=SILENCE, long_rpc_timeout=SILENCE)
        self.killer = killing.Killer()
        installed = self.killer.installed()
        installed.__enter__()
        self.addCleanup(installed.__exit__, None, None, None)
        self.mine, self.more = self.port(), self.port()
        self.the_server = self.with_ports(self.mine)
        self.pid = self.lxd.engine.metrics(self.container(self.the_server).name).pid

    def points(self, request: Callable[[], None]) -> list[int]:
        """Let the request finish, and return the steps at which to kill it."""
        self.killer.arm(None, base.HOST)
        request()
        return levels.points(self.killer.effects)

    def killed(self, step: int, request: Callable[[], None]) -> None:
        self.killer.arm(step, base.HOST)
        request()
        await_that(self.killer.happened.is_set, "nova-compute is killed", TIMEOUT)
        self.killer.arm(None, base.HOST)
        self.restart_compute_service(self.computes[base.HOST])

    def attach_more(self) -> None:
        with contextlib.suppress(OpenStackApiException):  # nova-compute does not answer
            self.attach_port(self.the_server, self.more)

    def detach_more(self) -> None:
        self.api.detach_interface(self.the_server["id"], self.more["id"])

    def is_attached(self) -> bool:
        cached = self.instance(self.the_server).get_network_info()
        return self.more["id"] in {vif["id"] for vif in cached}

    def assert_has(self, *ports: dict[str, Any]) -> None:
        """The server runs on with these ports' functions; nova, the host and the switch card agree."""
        self.assertEqual(self.pid, self.lxd.engine.metrics(self.container(self.the_server).name).pid)
        self.assertEqual([port["mac_address"] for port in ports],
                         [self.mac(self.the_server, f"eth{number}") for number in range(len(ports))])
        claimed = {device.address for device in self.instance(self.the_server).pci_devices}
        self.assertEqual(claimed, set(self.held()))
        self.assertEqual(len(ports), len(claimed))
        self.assertEqual([FREE] * (VFS - len(ports)), [vf for vf in self.of_physical_function() if vf == FREE])

    def after_kill(self, step: int) -> None:
        """Clean up as the server's user does: detach the port if the server has it."""
        self._run_periodics()
        if self.is_attached():
            self.detach_port(self.the_server, self.more)
        self.assert_has(self.mine)
        # Neutron keeps the port as nova left it; without the server's port it is attached again.
        self.neutron._ports[self.more["id"]] |= {"device_id": "", "binding:host_id": ""}

    @levels.exhaustive("functional/nova/test_killed_ports kills the driver's part of it")
    def test_attachment(self) -> None:
        points = self.points(self.attach_more)
        self.detach_port(self.the_server, self.more)
        for step in points:
            with self.subTest(step):
                self.killed(step, self.attach_more)
                self.after_kill(step)
        self.end()

    @levels.exhaustive("functional/nova/test_killed_ports kills the driver's part of it")
    def test_detachment(self) -> None:
        self.attach_more()
        for step in self.points(lambda: self.detach_port(self.the_server, self.more)):
            with self.subTest(step):
                self.attach_more()
                self.assert_has(self.mine, self.more)
                self.killed(step, self.detach_more)
                self.after_kill(step)
        self.end()

    def end(self) -> None:
        self.attach_more()
        self.assert_has(self.mine, self.more)
        self._delete_server(self.the_server)
        self.assert_nothing_left()
        self.assertEqual([FREE] * VFS, self.of_physical_function())
