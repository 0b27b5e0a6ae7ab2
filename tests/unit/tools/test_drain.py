# SPDX-License-Identifier: Apache-2.0
"""Move all servers off a host with examples/drain."""

import importlib.util
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import keystoneauth1.exceptions
import openstack
import testtools

from tools.cloud.layout import CHECKOUT


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("drain", CHECKOUT / "examples/drain/drain.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Cloud:
    """Plays nova's API for two hosts; each look at a server lets its migration get on.

    :ivar full: ids of servers that find no host
    """

    def __init__(self, **servers: dict[str, Any]) -> None:
        self.there = {name: SimpleNamespace(id=name, name=name, status="ACTIVE", task_state=None, metadata={},
                                            compute_host="one") for name in servers}
        for name, changes in servers.items():
            vars(self.there[name]).update(changes)
        self.actions: dict[str, list[SimpleNamespace]] = {name: [] for name in servers}
        self.full: set[str] = set()
        self.refused: set[str] = set()
        self.calls: list[str] = []
        self.service = SimpleNamespace(status="enabled")
        self.left: list[SimpleNamespace] = []

    def services(self, host: str, binary: str) -> list[SimpleNamespace]:
        return [self.service] if (host, binary) == ("one", "nova-compute") else []

    def disable_service(self, service: Any, host: str, binary: str, reason: str) -> None:
        service.status = "disabled"
        self.calls.append(f"disable: {reason}")

    def servers(self, all_projects: bool, compute_host: str) -> list[SimpleNamespace]:
        return [server for server in self.there.values() if server.compute_host == compute_host]

    def migrate_server(self, server: Any) -> None:
        if server.id in self.refused:
            raise openstack.exceptions.ForbiddenException("not allowed")
        self.calls.append(f"migrate {server.id}")
        self.actions[server.id].append(SimpleNamespace(action="migrate", request_id=f"req-{len(self.calls)}",
                                                       message=None))

    def get_server(self, server: Any) -> SimpleNamespace:
        if server.id in self.full:
            self.actions[server.id][-1].message = "Error"
        else:
            vars(server).update(status="VERIFY_RESIZE", compute_host="two")
        return self.there[server.id]

    def confirm_server_resize(self, server: Any) -> None:
        self.calls.append(f"confirm {server.id}")
        server.status = "ACTIVE"

    def server_actions(self, server: Any) -> list[SimpleNamespace]:
        return self.actions[server.id]

    def get_server_action(self, action: str, server: Any) -> SimpleNamespace:
        return SimpleNamespace(events=[SimpleNamespace(details=None), SimpleNamespace(details=f"no host for {action}"),
                                       SimpleNamespace(details=f"no host for {action}")])

    def migrations(self, **query: str) -> list[SimpleNamespace]:
        return self.left


class DrainTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.module = loaded()

    def made(self, cloud: Cloud, host: str = "one") -> Any:
        return self.module.Drain(cloud, host, 0.1, lambda text: None, lambda seconds: None)

    def drain(self, cloud: Cloud) -> dict[str, Any]:
        return {outcome.id: outcome for outcome in self.made(cloud).run("new kernel", 2)}

    def test_all_servers_move_and_are_confirmed(self) -> None:
        cloud = Cloud(a={}, b={"status": "SHUTOFF"})
        found = self.drain(cloud)
        self.assertEqual({"a": ("two", ""), "b": ("two", "")},
                         {name: (outcome.to, outcome.reason) for name, outcome in found.items()})
        self.assertEqual("disable: new kernel", cloud.calls[0])
        self.assertEqual({"migrate a", "confirm a", "migrate b", "confirm b"}, set(cloud.calls[1:]))

    def test_a_job_moves_only_if_it_agrees_and_as_a_whole(self) -> None:
        job = {"metadata": {"hpcjob": "wave-1"}}
        agrees = {"metadata": {"hpcjob": "wave-2", "hpcjob_move": "yes"}}
        cloud = Cloud(a=job, b=agrees, c=agrees, d=agrees | {"status": "PAUSED"},
                      e={"metadata": {"hpcjob": "wave-3", "hpcjob_move": "yes"}})
        found = self.drain(cloud)
        self.assertIn("does not agree to move: its owner sets hpcjob_move=yes", found["a"].reason)
        for name in "bcd":
            self.assertIn("d is PAUSED: only servers that are ACTIVE or SHUTOFF", found[name].reason)
        self.assertEqual("two", found["e"].to)

    def test_what_fails_stays_with_its_reason(self) -> None:
        cloud = Cloud(a={}, b={}, c={"task_state": "deleting"})
        cloud.full, cloud.refused = {"a"}, {"b"}
        cloud.actions["a"].append(SimpleNamespace(action="migrate", request_id="req-old", message="Error"))
        found = self.drain(cloud)
        self.assertEqual("its migration failed: no host for req-2", found["a"].reason)
        self.assertIn("not allowed", found["b"].reason)
        self.assertIn("busy (deleting)", found["c"].reason)

    def test_one_that_takes_longer_is_not_said_to_be_where_it_was(self) -> None:
        cloud = Cloud(a={})
        with mock.patch.object(cloud, "get_server", lambda server: server):
            self.assertIn("was not moved within 0.1 s and may still move", self.drain(cloud)["a"].reason)

    def test_one_that_was_on_its_way_to_the_host_moves_too(self) -> None:
        cloud = Cloud(a={}, b={"compute_host": None})

        def confirm(server: Any) -> None:
            Cloud.confirm_server_resize(cloud, server)
            if server.id == "a":
                cloud.there["b"].compute_host = "one"
        with mock.patch.object(cloud, "confirm_server_resize", confirm):
            self.assertEqual({"a", "b"}, self.drain(cloud).keys())

    def test_what_an_earlier_run_left_is_told(self) -> None:
        cloud = Cloud(a={"compute_host": "two", "status": "VERIFY_RESIZE"})
        cloud.left = [SimpleNamespace(server_id="a", source_compute="one", dest_compute="two"),
                      SimpleNamespace(server_id="b", source_compute="two", dest_compute="one")]
        found = self.drain(cloud)
        self.assertEqual(["a"], list(found))
        self.assertIn("openstack server resize confirm a", found["a"].reason)

    def test_cloud_that_lets_nobody_in_is_no_traceback(self) -> None:
        missing = keystoneauth1.exceptions.MissingRequiredOptions([])
        refused = openstack.exceptions.ForbiddenException("not allowed")
        for found in ({"side_effect": missing}, {"return_value.compute.services.side_effect": refused}):
            with mock.patch("openstack.connect", **found), mock.patch("sys.argv", ["drain.py", "one", "--dry-run"]):
                self.assertIn("OS_CLOUD", str(self.assertRaises(SystemExit, self.module.main)))

    def test_a_host_that_is_none_changes_nothing(self) -> None:
        drain = self.made(Cloud(a={}), "three")
        for act in (lambda: drain.run("new kernel", 2), drain.plan):
            error = self.assertRaises(SystemExit, act)
            self.assertIn("no compute service of host three", str(error))
