# SPDX-License-Identifier: Apache-2.0
"""Servers with an affinity: cores of their own and the memory of those, read from the control group of the container.

The emulated host has two NUMA nodes with one core each; the kernel beneath has one memory node, so that binding memory
to another one than that cannot be seen here.
"""

from pathlib import Path
from typing import Any, ClassVar

from tests.functional.nova import base  # isort: skip (decides how nova runs)

from containerhost.engines.contract import Status
from containerhost.inventory import topology
from containerhost.linux.idlist import id_list
from containerhost.linux.sysfs import Host
from tests import levels
from tests.waiting import await_that

ONLY_NODE = frozenset({0})  # of the kernel's memory


class AffinityTest(base.LxdServers):
    options: ClassVar = {(None, "allow_resize_to_same_host"): True}

    def setUp(self) -> None:
        super().setUp()
        self.nodes = {node.id: node.cpus for node in topology.read(Host()).nodes}
        if [len(cores) for cores in self.nodes.values()] != [1, 1]:
            self.skipTest("the refusals are those of a host with two nodes of one core each")
        self.one = self.flavor(memory_mb=96, hpc__affinity="cpumem")
        self.both = self.flavor(vcpu=2, memory_mb=96, hpc__affinity="cpu")
        self.wide = self.flavor(vcpu=2, memory_mb=96, hpc__affinity="cpumem")

    def group(self, server: Any, file: str) -> frozenset[int]:
        """A file of the control group cpuset of the server's container, as it is in force."""
        pid = self.lxd.engine.metrics(self.container(server).name).pid
        groups = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
        path = next((path for _, names, path in groups if "cpuset" in names.split(",")), None)
        directory = Path("/sys/fs/cgroup") if path is None else Path("/sys/fs/cgroup/cpuset")
        path = next(path for _, names, path in groups if not names) if path is None else path
        return id_list((directory / path.lstrip("/") / file).read_text().strip())

    def cores(self, server: Any) -> frozenset[int]:
        return self.group(server, "cpuset.cpus")

    def refused_resize(self, server: Any, flavor: str, words: str) -> None:
        before = self.config(server)["config"]
        self.api.post_server_action(server["id"], {"resize": {"flavorRef": flavor}})
        self._wait_for_migration_status(server, ["error"])
        self._wait_for_server_parameter(server, {"status": "ACTIVE", "OS-EXT-STS:task_state": None})
        await_that(lambda: words in self.fault_of_move(server),  # nova ends the action's event last
                   lambda: f"{words!r} in {self.fault_of_move(server)!r}")
        after = self.config(server)["config"]
        self.assertEqual({key: before.get(key) for key in ("limits.cpu", "raw.lxc", "user.containerhost.cores")},
                         {key: after.get(key) for key in ("limits.cpu", "raw.lxc", "user.containerhost.cores")})

    def fault_of_move(self, server: Any) -> str:
        actions = self.admin_api.get_instance_actions(server["id"])
        latest = next(found for found in actions if found["action"] == "resize")
        shown = self.admin_api.api_get(f"/servers/{server['id']}/os-instance-actions/{latest['request_id']}").body
        return " ".join(event["details"] or "" for event in shown["instanceAction"]["events"])

    def test_servers_have_different_cores_and_one_too_many_is_refused(self) -> None:
        first = self.server(self.one)
        self.restart_compute_service(self.computes[base.HOST])
        second = self.server(self.one)
        for server in (first, second):
            self.assertEqual(1, len(self.cores(server)))
            self.assertEqual(ONLY_NODE, self.group(server, "cpuset.mems"))
            self.assertIn("cpuset.mems = 0", self.config(server)["config"]["raw.lxc"])
        self.assertEqual(frozenset().union(*self.nodes.values()), self.cores(first) | self.cores(second))
        third = self.server(self.one, expected="ERROR")
        self.assertIn("requested 1 cores on one socket; socket 0 has 0 free of 1, socket 1 has 0 free of 1",
                      " ".join(self.reasons(third)))
        self.api.delete_server(first["id"])
        self._wait_until_deleted(first)
        self.assertNotEqual(self.cores(second), self.cores(self.server(self.one)))

    @levels.exhaustive("the engines' contract and units show it; one test of nova remains")
    def test_wider_than_a_socket_and_contradictions_are_refused(self) -> None:
        table = ((self.wide, "requested 2 cores on one socket; socket 0 has 1 free of 1"),
                 (self.flavor(vcpu=2, hpc__affinity="cpumem", hw__numa_nodes="2"), "hw:numa_nodes=2"),
                 (self.flavor(hpc__affinity="any", hw__numa_nodes="1"), "hpc:affinity=any"))
        for flavor, words in table:
            server = self.server(flavor, expected="ERROR")
            self.assertIn(words, " ".join(self.reasons(server)))
            self.api.delete_server(server["id"])
            self._wait_until_deleted(server)
        self.assert_nothing_left()

    @levels.exhaustive("the engines' contract and units show it; one test of nova remains")
    def test_live_resize_chooses_anew_and_a_refused_one_changes_nothing(self) -> None:
        server = self.server(self.one)
        pid = self.lxd.engine.metrics(self.container(server).name).pid
        self.refused_resize(server, self.wide, "socket 0 has 1 free of 1")
        self.resize(server, self.both)
        self.assertEqual(frozenset().union(*self.nodes.values()), self.cores(server))
        self.assertEqual((pid, Status.RUNNING), (self.lxd.engine.metrics(self.container(server).name).pid,
                                                 self.container(server).status))
        self.revert(server)
        self.assertEqual(1, len(self.cores(server)))
        self.assertEqual(pid, self.lxd.engine.metrics(self.container(server).name).pid)
        plain = self.server(self.flavor(memory_mb=96))
        self.resize(plain, self.one)
        self.assertEqual(frozenset().union(*self.nodes.values()), self.cores(server) | self.cores(plain))

    @levels.exhaustive("the engines' contract and units show it; one test of nova remains")
    def test_cores_stay_reserved_until_a_resize_is_confirmed(self) -> None:
        plain = self.flavor(memory_mb=96)
        server, _ = self.server(self.one), self.server(self.one)
        cores = self.cores(server)
        self.resize(server, plain)
        refused = self.server(self.one, expected="ERROR")
        self.api.delete_server(refused["id"])
        self.revert(server)
        self.assertEqual(cores, self.cores(server))
        self.resize(server, plain)
        self.api.post_server_action(server["id"], {"confirmResize": None})
        self._wait_for_migration_status(server, ["confirmed"])
        self.assertEqual(cores, self.cores(self.server(self.one)))

    @levels.exhaustive("the engines' contract and units show it; one test of nova remains")
    def test_rescued_server_has_its_cores(self) -> None:
        server = self.server(self.one)
        cores = self.cores(server)
        self.server(self.one)
        self.api.post_server_action(server["id"], {"rescue": {"rescue_image_ref": self.image()}})
        self._wait_for_state_change(server, "RESCUE")
        rescuing = self.lxd.engine.container(self.instance(server).name)
        self.assertEqual(cores, rescuing.cores)
