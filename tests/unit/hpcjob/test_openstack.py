# SPDX-License-Identifier: Apache-2.0
import base64
import json
import logging
from typing import Any

import fixtures
import testtools

from hpcjob import gang
from hpcjob.errors import BadJob, GangFailed, Leftover
from hpcjob.job import Job, Member
from hpcjob.openstack import OpenStack
from tests.unit.hpcjob import jobs
from tests.unit.hpcjob.fakeopenstack import FakeOpenStack

NOTHING = {"servers": 0, "ports": 0, "groups": 0}


class OpenStackTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.cloud = self.useFixture(FakeOpenStack())
        self.clock = jobs.Clock()
        self.logged = self.useFixture(fixtures.FakeLogger(level=logging.DEBUG))

    def start(self, job: Job | None = None) -> list[Member]:
        cloud = OpenStack(self.cloud.connection(), self.clock.sleep)
        return gang.start(cloud, job or jobs.job(), "wave-1", self.clock.sleep, self.clock)

    def refused(self, error: type[Exception] = GangFailed, job: Job | None = None) -> str:
        failed = self.assertRaises(error, self.start, job)
        self.assertEqual(NOTHING, self.cloud.left())
        return str(failed)

    def posted(self, kind: str) -> list[Any]:
        return [body for method, path, body in self.cloud.requests if method == "POST" and path.endswith(f"/{kind}")]

    def test_all_members_run_with_rank_map(self) -> None:
        members = self.start()
        self.assertEqual([Member(rank, rank // 2, f"wave-1-{rank}", f"10.0.0.{rank + 10}", f"{rank // 2:012x}")
                          for rank in range(4)], members)
        self.assertEqual({"servers": 4, "ports": 4, "groups": 1}, self.cloud.left())

    def test_hints_and_ports(self) -> None:
        self.start()
        (group,) = self.cloud.groups
        for rank, body in enumerate(self.posted("servers")):
            self.assertEqual({"group": group, "task_groups": "2", "task_members": "4", "task_rank": str(rank)},
                             body["OS-SCH-HNT:scheduler_hints"])
            port = self.cloud.ports[body["server"]["networks"][0]["port"]]
            self.assertEqual(f"wave-1-{rank}", port["name"])
        self.assertEqual([{"name": "wave-1", "policy": "soft-anti-affinity"}],
                         [body["server_group"] for body in self.posted("os-server-groups")])

    def test_strict_is_anti_affinity_with_its_rule(self) -> None:
        self.start(jobs.job(strict="true", members=5))
        (body,) = self.posted("os-server-groups")
        self.assertEqual(("anti-affinity", {"max_server_per_host": 3}),
                         (body["server_group"]["policy"], body["server_group"]["rules"]))

    def test_each_member_gets_hostfile_rank_and_one_key(self) -> None:
        self.start()
        of_ranks = [self.cloud.user_data(rank) for rank in range(4)]
        self.assertEqual("".join(f"10.0.0.{rank + 10} slots=2\n" for rank in range(4)),
                         of_ranks[3]["/etc/hpcjob/hostfile"])
        self.assertEqual(["0\n", "1\n", "2\n", "3\n"], [of["/etc/hpcjob/rank"] for of in of_ranks])
        self.assertEqual(1, len({of["/root/.ssh/hpcjob"] for of in of_ranks}))
        self.assertIn('from="10.0.0.10,10.0.0.11,10.0.0.12,10.0.0.13" ssh-ed25519 ',
                      of_ranks[0]["/root/.ssh/authorized_keys"])

    def test_guests_close_the_metadata_service_that_shows_the_key(self) -> None:
        self.start()
        text = base64.b64decode(self.posted("servers")[0]["server"]["user_data"]).decode()
        self.assertIs(True, json.loads(text.removeprefix("#cloud-config\n"))["disable_ec2_metadata"])

    def test_the_key_is_in_no_log_and_no_message(self) -> None:
        self.cloud.room = 3
        said = self.refused()
        secret = self.cloud.user_data(0)["/root/.ssh/hpcjob"].splitlines()[2]
        for text in (said, self.logged.output):
            self.assertNotIn(secret, text)
            self.assertNotIn("PRIVATE KEY", text)

    def test_a_job_larger_than_the_cloud_leaves_nothing_and_says_why(self) -> None:
        self.cloud.room = 0
        self.assertIn("wave-1-0 failed: No valid host was found. no hosts have room; all members are removed",
                      self.refused())
        self.assertEqual(1, len(self.posted("servers")))

    def test_more_ranks_than_cores(self) -> None:
        self.assertIn("slots=3 is more than the 2 cores of a member", self.refused(BadJob, jobs.job(slots=3)))
        self.assertEqual([], self.posted("ports"))
        self.start(jobs.job(slots=3, oversubscribe="true"))

    def test_the_last_member_fails(self) -> None:
        self.cloud.room = 3
        self.assertIn("wave-1-3 failed: No valid host", self.refused())

    def test_quota(self) -> None:
        self.cloud.most_ports = 2
        self.assertIn("Quota exceeded for resources: ['port']", self.refused())

    def test_a_member_is_deleted_during_the_start(self) -> None:
        self.cloud.booting = False

        def delete_second(method: str, path: str) -> None:
            if path.endswith("/servers/detail") and len(self.cloud.servers) == 4:
                for server in list(self.cloud.servers.values()):
                    if server["name"] == "wave-1-1":
                        del self.cloud.servers[server["id"]]

        self.cloud.after = delete_second
        self.assertIn("wave-1-1 (rank 1) was deleted while the job started", self.refused())

    def test_a_member_is_deleted_before_it_has_a_host(self) -> None:
        self.cloud.scheduled = False
        self.cloud.after = lambda method, path: self.cloud.servers.clear()
        self.assertIn("wave-1-0 was deleted while the job started", self.refused())

    def test_a_member_stops_by_itself(self) -> None:
        self.cloud.booting = False

        def stop(method: str, path: str) -> None:
            for server in self.cloud.servers.values():
                if len(self.cloud.servers) == 4 and server["hostId"]:
                    server["status"] = "SHUTOFF"

        self.cloud.after = stop
        self.assertIn("failed: its status is SHUTOFF", self.refused())

    def test_time_limit(self) -> None:
        self.cloud.booting = False
        self.assertIn("time limit: not all 4 members run after 30 s; 4 are waiting: scheduling", self.refused())
        self.cloud.scheduled = False
        self.assertIn("time limit", self.refused())

    def test_interrupted_at_every_request(self) -> None:
        self.start()
        count = len(self.cloud.requests)
        for at in range(0, count, 3):
            cloud = self.useFixture(FakeOpenStack())
            connection = OpenStack(cloud.connection(), self.clock.sleep)
            interrupted = _Interrupting(connection, cloud, at)
            self.assertRaises(KeyboardInterrupt, gang.start, interrupted, jobs.job(), "wave-2", self.clock.sleep,
                              self.clock)
            self.assertEqual(NOTHING, cloud.left(), at)

    def test_what_the_cloud_does_not_have(self) -> None:
        for key, words in (("network", "no network 'x'"), ("image", "no image 'x'"), ("flavor", "no flavor 'x'")):
            section = {"image": "IMG-1", "flavor": "FL-1", "network": "NET-1"} | {key: "x"}
            self.assertIn(words, self.refused(BadJob, jobs.job(openstack=json.dumps(section))))
        self.assertEqual([], self.posted("servers"))

    def test_members_that_cannot_be_removed_are_named_with_the_command(self) -> None:
        self.cloud.room = 3
        self.cloud.undeletable = True
        said = str(self.assertRaises(Leftover, self.start))
        self.assertIn("wave-1-3 failed: No valid host", said)
        self.assertIn("server wave-1-0", said)
        self.assertIn("hpcjob delete openstack wave-1", said)
        self.cloud.undeletable = False
        gang.remove(OpenStack(self.cloud.connection()), "wave-1", self.clock.sleep, self.clock)
        self.assertEqual(NOTHING, self.cloud.left())

    def test_the_cloud_fails_while_members_are_removed(self) -> None:
        self.cloud.fail["DELETE", "servers"] = 503
        self.cloud.room = 3
        said = str(self.assertRaises(Leftover, self.start))
        self.assertIn("503", said)

    def test_removal_touches_no_other_job(self) -> None:
        self.start()
        self.start_other = gang.start(OpenStack(self.cloud.connection(), self.clock.sleep), jobs.job(), "wave-11",
                                      self.clock.sleep, self.clock)
        gang.remove(OpenStack(self.cloud.connection()), "wave-1", self.clock.sleep, self.clock)
        self.assertEqual({"servers": 4, "ports": 4, "groups": 1}, self.cloud.left())
        self.assertEqual({"wave-11"}, {server["metadata"]["hpcjob"] for server in self.cloud.servers.values()})

    def test_more_members_than_user_data_has_room_for(self) -> None:
        self.useFixture(fixtures.MonkeyPatch("hpcjob.openstack.MOST_USER_DATA", 1000))
        self.assertIn("and nova's limit is 1000: request fewer members with more slots", self.refused(BadJob))


class _Interrupting(OpenStack):
    """A cloud whose user types Ctrl-C at a request."""

    def __init__(self, cloud: OpenStack, fake: FakeOpenStack, at: int) -> None:
        self.__dict__ = dict(cloud.__dict__)
        session, self._left, self._fake = self._cloud.session, at, fake
        self._original = session.request
        session.request = self._request

    def _request(self, *args: Any, **options: Any) -> Any:
        answer = self._original(*args, **options)
        self._left -= 1
        if self._left == -1:  # the cloud has done it, but its answer is lost
            raise KeyboardInterrupt
        return answer
