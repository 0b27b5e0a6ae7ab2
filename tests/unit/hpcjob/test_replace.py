# SPDX-License-Identifier: Apache-2.0
"""Replace one member of a job, on both clouds."""

import dataclasses
import json
import stat
from pathlib import Path
from typing import Any
from unittest import mock
from xml.etree import ElementTree

import fixtures
import testtools

from hpcjob import gang, keys, record
from hpcjob.errors import BadJob, GangFailed, Intact, JobError, Vacant
from hpcjob.job import Member
from hpcjob.opennebula import OpenNebula, requirements
from hpcjob.openstack import OpenStack
from tests.unit.hpcjob import jobs
from tests.unit.hpcjob.fakeopennebula import HOLD, POWEROFF, FakeOpenNebula
from tests.unit.hpcjob.fakeopenstack import FakeOpenStack

UNKNOWN = 16  # LCM_STATE


class Case(testtools.TestCase):
    """:ivar kept: members with the hosts that are avoided, as they were given to be written down"""

    job = jobs.job()
    new: Any

    def begin(self, **options: Any) -> None:
        self.clock = jobs.Clock()
        self.key = keys.make("wave-1")
        self.members = gang.start(self.new(), self.job, "wave-1", self.clock.sleep, self.clock, key=self.key)
        self.kept: list[Member] = []

    def replace(self, rank: int = 1, force: bool = False, cloud: Any = None) -> Member:
        return gang.replace(cloud or self.new(), self.job, "wave-1", self.members, rank, self.key, force,
                            self.clock.sleep, self.clock, self.kept.append)

    def refused(self, error: type[Exception], *arguments: Any, **options: Any) -> str:
        return str(self.assertRaises(error, self.replace, *arguments, **options))


class OpenStackTest(Case):
    def setUp(self) -> None:
        super().setUp()
        self.cloud = self.useFixture(FakeOpenStack())
        self.new = lambda: OpenStack(self.cloud.connection(), self.clock.sleep)
        self.begin()

    def ids(self) -> dict[str, str]:
        return {server["name"]: name for name, server in self.cloud.servers.items()}

    def server(self, rank: int = 1) -> dict[str, Any]:
        return self.cloud.servers[self.ids()[f"wave-1-{rank}"]]

    def posts(self) -> list[Any]:
        wanted = ("POST", "/compute/v2.1/servers")
        return [body for method, path, body in self.cloud.requests if (method, path) == wanted]

    def test_failed_member_is_made_anew_with_its_port_and_files_on_another_host(self) -> None:
        self.server()["status"] = "ERROR"
        before = self.ids()
        new = self.replace()
        self.assertEqual(dataclasses.replace(self.members[1], host="00000000000a"), new)
        after = self.ids()
        self.assertEqual(["wave-1-1"], [name for name in before if before[name] != after[name]])
        self.assertEqual({"servers": 4, "ports": 4, "groups": 1}, self.cloud.left())
        old, made = self.posts()[1], self.posts()[4]
        self.assertEqual(old["server"], made["server"])
        self.assertEqual({**old["OS-SCH-HNT:scheduler_hints"], "task_avoid": self.members[1].host},
                         made["OS-SCH-HNT:scheduler_hints"])
        self.assertEqual([self.members[1]], self.kept)

    def test_member_that_runs_or_was_stopped_is_replaced_by_force_only(self) -> None:
        before = self.ids()
        self.assertIn("wave-1-1 runs (host 000000000000), and nothing was changed: --force", self.refused(Intact))
        for status in ("SHUTOFF", "VERIFY_RESIZE", "PAUSED"):
            self.server()["status"] = status
            self.assertIn(f"is intact: its status is {status}", self.refused(Intact))
        self.assertEqual((before, []), (self.ids(), self.kept))
        self.assertEqual("00000000000a", self.replace(force=True).host)

    def test_deleted_member_avoids_the_host_that_was_written_down(self) -> None:
        del self.cloud.servers[self.ids()["wave-1-1"]]
        self.cloud.ports[self.posts()[1]["server"]["networks"][0]["port"]]["device_id"] = ""
        self.replace()
        self.assertEqual(self.members[1].host, self.posts()[4]["OS-SCH-HNT:scheduler_hints"]["task_avoid"])

    def test_member_that_starts_is_waited_for(self) -> None:
        self.server().update(status="BUILD")
        self.cloud.booting = False

        def boot(method: str, path: str) -> None:
            self.cloud.booting = self.cloud.booting or path.endswith("/servers/detail")

        self.cloud.after = boot
        self.assertEqual(self.members[1], self.replace())
        self.assertEqual(4, len(self.posts()))

    def test_no_room_says_how_to_go_on_and_the_next_try_makes_one_member(self) -> None:
        self.cloud.room = 3
        said = self.refused(Vacant, force=True)
        self.assertEqual("wave-1-1 failed: No valid host was found. no hosts have room. All other members are "
                         "unchanged. Continue with: hpcjob replace openstack wave-1 1", said)
        self.cloud.room = 1000
        self.replace()
        self.assertEqual({"servers": 4, "ports": 4, "groups": 1}, self.cloud.left())

    def test_server_that_stays_or_port_that_is_kept_is_named_with_what_to_do(self) -> None:
        self.cloud.undeletable = True
        said = self.refused(Vacant, force=True)
        self.assertIn("not removed after 180 s: server wave-1-1. If its host does not answer, an operator switches the "
                      "machine off and says so: openstack compute service set --down HOST nova-compute. All", said)
        self.assertTrue(said.endswith("hpcjob replace openstack wave-1 1 --force"), said)
        self.assertIn("not removed after 180 s", self.refused(Vacant))  # one that is being deleted needs no force
        self.assertEqual(4, len(self.posts()))
        self.cloud.undeletable, self.cloud.port_kept = False, True
        self.assertIn("180 s: port wave-1-1 of server ", self.refused(Vacant))
        self.assertEqual(4, len(self.posts()))

    def test_cloud_that_refuses_or_another_project_changes_nothing(self) -> None:
        self.cloud.fail["GET", "servers"] = 403
        self.assertIn("; nothing was changed", self.refused(GangFailed, force=True))
        self.cloud.fail.clear()
        self.cloud.groups.clear()
        self.assertIn("no server group wave-1 or no port wave-1-1", self.refused(GangFailed, force=True))
        self.assertEqual([], [path for method, path, _ in self.cloud.requests if method == "DELETE"])

    def test_interrupted_at_every_request_and_run_again_there_is_one_member_of_each_rank(self) -> None:
        before = len(self.cloud.requests)
        self.replace(force=True)
        for at in range(len(self.cloud.requests) - before):
            cloud = self.new()
            left, original = [at], cloud._cloud.session.request

            def request(*args: Any, left: list[int] = left, original: Any = original, **options: Any) -> Any:
                answer = original(*args, **options)
                left[0] -= 1
                if left[0] == -1:  # the cloud has done it, but its answer is lost
                    raise GangFailed("interrupted")
                return answer

            cloud._cloud.session.request = request
            said = str(self.assertRaises(JobError, self.replace, force=True, cloud=cloud))
            if "nothing was changed" in said:
                self.assertRaises(Intact, self.replace)
            else:
                try:
                    self.replace(force=said.endswith("--force"))
                except Intact:
                    self.assertEqual("00000000000a", self.new().states("wave-1")[1].host)
            self.assertEqual({"servers": 4, "ports": 4, "groups": 1}, self.cloud.left(), at)
            self.assertTrue(all(state.running for state in self.new().states("wave-1").values()), at)


class OpenNebulaTest(Case):
    def setUp(self) -> None:
        super().setUp()
        self.cloud = self.useFixture(FakeOpenNebula())
        self.new = lambda: OpenNebula(self.cloud.server())
        self.cloud.template = ("<SCHED_REQUIREMENTS>HYPERVISOR=\"lxdone\" | FREE_CPU &gt; 1</SCHED_REQUIREMENTS>"
                               "<HPC><SHARED_MEMORY>64</SHARED_MEMORY></HPC>")
        self.begin()

    def vms(self) -> dict[str, int]:
        return {vm["name"]: number for number, vm in self.cloud.vms.items()}

    def test_member_on_a_dead_host_is_made_anew_with_its_address_and_files(self) -> None:
        self.cloud.vms[101]["lcm"] = UNKNOWN
        new = self.replace()
        self.assertEqual(dataclasses.replace(self.members[1], host="node9"), new)
        self.assertEqual({"wave-1-0": 100, "wave-1-1": 104, "wave-1-2": 102, "wave-1-3": 103}, self.vms())
        made = self.cloud.vms[104]
        self.assertEqual({"HPCJOB": "wave-1", "HPCJOB_RANK": "1"}, made["user"])
        self.assertEqual({"NETWORK": "YES", "SET_HOSTNAME": "wave-1-1"},
                         {key: made["context"][key] for key in ("NETWORK", "SET_HOSTNAME")})
        more = ElementTree.fromstring(made["more"])
        for path, text in (("NIC/IP", "10.1.0.6"), ("NIC/NETWORK", "private"), ("HPC/JOB", "wave-1"),
                           ("HPC/SHARED_MEMORY", "64"),
                           ("SCHED_REQUIREMENTS", '(HYPERVISOR="lxdone" | FREE_CPU > 1) & NAME != "node0"')):
            self.assertEqual(text, more.findtext(path))
        self.assertIsNone(more.find("VMGROUP"))

    def test_files_are_those_of_the_old_member(self) -> None:
        before = self.cloud.vms[101]["context"]["START_SCRIPT_BASE64"]
        self.replace(force=True)
        self.assertEqual(before, self.cloud.vms[104]["context"]["START_SCRIPT_BASE64"])

    def test_member_that_runs_or_was_stopped_is_replaced_by_force_only(self) -> None:
        self.assertIn("wave-1-1 runs (host node0)", self.refused(Intact))
        self.cloud.vms[101] |= {"state": POWEROFF, "lcm": 0}
        self.assertIn("is intact: its state is POWEROFF", self.refused(Intact))
        self.assertEqual(101, self.vms()["wave-1-1"])
        self.replace(force=True)

    def test_vm_on_a_host_that_does_not_answer_is_named_with_what_to_do(self) -> None:
        self.cloud.dead.add("node0")
        said = self.refused(Vacant, force=True)
        self.assertIn("180 s: VM 101 (wave-1-1). If its host does not answer, an operator switches the machine off and "
                      "removes the VM: onevm recover --delete VM. All", said)
        self.assertEqual(4, len(self.vms()))
        del self.cloud.vms[101]  # as the operator did
        self.assertEqual("node9", self.replace().host)

    def test_address_that_another_vm_took(self) -> None:
        self.cloud.vms[200] = self.cloud.vms.pop(101) | {"name": "other", "user": {}}
        self.assertIn("Cannot get IP/MAC lease from virtual network 0.. All other", self.refused(Vacant))
        del self.cloud.vms[200]
        self.replace()

    def test_network_that_gives_another_address_leaves_no_member(self) -> None:
        del self.cloud.vms[101]
        info = self.cloud._vm_info
        another = mock.Mock(side_effect=lambda number, *_: info(number).replace("10.1.0.6", "10.1.0.77"))
        with mock.patch.object(self.cloud, "_vm_info", another):
            self.assertIn("the address 10.1.0.77 and not its own, 10.1.0.6", self.refused(Vacant))
        self.assertNotIn("wave-1-1", self.vms())

    def test_vm_on_hold_is_no_member(self) -> None:
        self.cloud.vms[101] |= {"state": HOLD, "lcm": 0}
        self.assertEqual("node9", self.replace().host)

    def test_another_users_job(self) -> None:
        self.cloud.groups.clear()
        self.assertIn("this user has no VM group wave-1", self.refused(GangFailed, force=True))
        self.assertEqual(101, self.vms()["wave-1-1"])

    def test_interrupted_at_every_request_and_run_again_there_is_one_member_of_each_rank(self) -> None:
        before = len(self.cloud.requests)
        self.replace(force=True)
        for at in range(len(self.cloud.requests) - before):
            server = self.cloud.server()
            left, original = [at], server._do_request

            def request(method: str, parameters: Any, left: list[int] = left, original: Any = original) -> Any:
                answer = original(method, parameters)
                left[0] -= 1
                if left[0] == -1:
                    raise GangFailed("interrupted")
                return answer

            server.__dict__["_do_request"] = request
            said = str(self.assertRaises(JobError, self.replace, force=True, cloud=OpenNebula(server)))
            if "nothing was changed" not in said:
                try:
                    self.replace(force=said.endswith("--force"))
                except Intact:
                    self.assertEqual("node9", self.new().states("wave-1")[1].host)
            self.assertEqual([f"wave-1-{rank}" for rank in range(4)], sorted(self.vms()), at)
            self.assertEqual(4, len(self.cloud.vms))


class RequirementsTest(testtools.TestCase):
    def test_strict_jobs_keep_their_groups_together_and_apart(self) -> None:
        member = Member(1, 0, "a-1", "10.0.0.1", "n1")
        together, split = {0: "n1", 2: "n2", 3: "n2"}, {0: "n5", 2: "n2", 3: "n2"}
        for strict, hosts, expected in (("false", together, 'NAME != "n1"'), ("false", split, 'NAME != "n1"'),
                                        ("true", together, 'NAME != "n1" & NAME != "n2"'),
                                        ("true", split, 'NAME != "n1" & NAME != "n2" & (NAME = "n5")')):
            self.assertEqual(expected, requirements("", jobs.job(strict=strict), member, hosts))


class RecordTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.root = Path(self.useFixture(fixtures.TempDir()).path) / "state"
        self.records = record.Records(self.root)
        members = (Member(0, 0, "wave-1-0", "10.0.0.1", "h"),)
        self.record = record.Record("openstack", jobs.TEXT, members, keys.make("w"))

    def test_written_and_read_by_its_owner_alone(self) -> None:
        self.records.save("wave-1", self.record)
        self.assertEqual(self.record, self.records.load("wave-1"))
        path = self.records.path("wave-1")
        self.assertEqual([0o600, 0o700], [stat.S_IMODE(entry.stat().st_mode) for entry in (path, path.parent)])
        self.assertEqual([path], list(path.parent.iterdir()))
        self.assertNotIn("PRIVATE", repr(self.record))
        self.records.forget("wave-1")
        self.records.forget("wave-1")
        self.assertEqual([], list(self.root.iterdir()))

    def test_unknown_and_damaged_ones_are_named(self) -> None:
        self.assertIn("is not there: members are replaced where", self.refused("wave-1"))
        self.records.save("wave-2", self.record)
        self.assertIn("known are wave-2", self.refused("wave-1"))
        for text in ("", "[]", "{}", json.dumps({"cloud": "a", "text": "", "members": [], "key": {}})):
            self.records.path("wave-2").write_text(text)
            self.assertIn("cannot be read", self.refused("wave-2"))
        for ident in ("../x", "a/b", "", "a\n"):
            self.assertIn("is not an id of a job", self.refused(ident))

    def refused(self, ident: str) -> str:
        return str(self.assertRaises(BadJob, self.records.load, ident))

    def test_one_command_at_a_time(self) -> None:
        with self.records.locked("wave-1"):
            pass
        self.records.save("wave-1", self.record)
        with self.records.locked("wave-1"):
            self.assertRaises(JobError, self.records.locked("wave-1").__enter__)
        with self.records.locked("wave-1"):
            pass
