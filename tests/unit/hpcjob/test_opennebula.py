# SPDX-License-Identifier: Apache-2.0
import base64
from typing import Any

import pyone
import testtools

from hpcjob import gang
from hpcjob.errors import BadJob, GangFailed
from hpcjob.job import Job, Member
from hpcjob.opennebula import OpenNebula
from tests.unit.hpcjob import jobs
from tests.unit.hpcjob.fakeopennebula import ACTIVE, POWEROFF, PROLOG_FAILURE, FakeOpenNebula

NOTHING = {"vms": 0, "groups": 0}


class OpenNebulaCase(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.cloud = self.useFixture(FakeOpenNebula())
        self.clock = jobs.Clock()

    def start(self, job: Job | None = None) -> list[Member]:
        return gang.start(OpenNebula(self.cloud.server()), job or jobs.job(), "wave-1", self.clock.sleep, self.clock)

    def script(self, vm: int) -> str:
        return base64.b64decode(self.cloud.vms[vm]["context"]["START_SCRIPT_BASE64"]).decode()


class OpenNebulaTest(OpenNebulaCase):
    def refused(self, error: type[Exception] = GangFailed, job: Job | None = None) -> str:
        failed = self.assertRaises(error, self.start, job)
        self.assertEqual(NOTHING, self.cloud.left())
        return str(failed)

    def when(self, method: str, action: Any) -> None:
        def after(called: str) -> None:
            if called == method:
                action()

        self.cloud.after = after

    def test_all_members_run_with_rank_map(self) -> None:
        self.assertEqual([Member(rank, rank // 2, f"wave-1-{rank}", f"10.1.0.{rank + 5}", f"node{rank // 2}")
                          for rank in range(4)], self.start())
        self.assertEqual({"vms": 4, "groups": 1}, self.cloud.left())

    def test_job_of_another_user_is_named_and_not_removed(self) -> None:
        self.start()
        for vm in self.cloud.vms.values():
            vm["owner"] = "bob"
        self.cloud.groups.clear()
        cloud = OpenNebula(self.cloud.server())
        self.assertFalse(gang.remove(cloud, "wave-1", self.clock.sleep, self.clock))
        self.assertEqual([f"VM wave-1-{rank} of user bob" for rank in range(4)], cloud.of_others("wave-1"))
        self.assertEqual([], cloud.of_others("wave-2"))

    def test_no_vm_is_released_before_all_have_their_files(self) -> None:
        self.start()
        actions = [request[1] if request[0] == "one.vm.action" else request[0] for request in self.cloud.requests]
        self.assertLess(max(at for at, name in enumerate(actions) if name == "one.vm.updateconf"),
                        actions.index("release"))

    def test_groups_are_roles_of_a_vm_group(self) -> None:
        self.start()
        self.assertEqual(['NAME="wave-1"\nROLE=[NAME="g0",POLICY="AFFINED"]\nROLE=[NAME="g1",POLICY="AFFINED"]\n'
                          'ANTI_AFFINED="g0,g1"\n'], self.cloud.group_templates)
        self.assertEqual(['VMGROUP=[VMGROUP_ID="70",ROLE="g0"]'] * 2 + ['VMGROUP=[VMGROUP_ID="70",ROLE="g1"]'] * 2,
                         [vm["more"].splitlines()[2] for vm in self.cloud.vms.values()])

    def test_one_group_has_nothing_to_keep_apart(self) -> None:
        self.start(jobs.job(groups=1))
        self.assertNotIn("ANTI_AFFINED", self.cloud.group_templates[0])

    def test_guests_are_called_as_the_rank_map_calls_them(self) -> None:
        self.start()
        self.assertEqual([f"wave-1-{rank}" for rank in range(4)],
                         [vm["context"]["SET_HOSTNAME"] for vm in self.cloud.vms.values()])

    def test_the_templates_own_name_of_the_guest_stays(self) -> None:
        self.cloud.context |= {"SET_HOSTNAME": "mine"}
        self.start()
        self.assertEqual({"mine"}, {vm["context"]["SET_HOSTNAME"] for vm in self.cloud.vms.values()})

    def test_the_templates_own_start_script_runs_after_it(self) -> None:
        self.cloud.context |= {"START_SCRIPT": "#!/bin/bash\necho mine $NAME\n"}
        self.start()
        self.assertTrue(self.script(100).endswith("#!/bin/bash\necho mine $NAME\n"))
        self.assertEqual("", self.cloud.vms[100]["context"]["START_SCRIPT"])
        self.assertEqual("YES", self.cloud.vms[100]["context"]["NETWORK"])

    def test_the_templates_own_shell_runs_both(self) -> None:
        for shell in ("#!/bin/bash", "#!/bin/sh"):
            self.cloud.context |= {"START_SCRIPT": f"{shell}\necho mine\n"}
            self.cloud.vms.clear()
            self.start()
            self.assertEqual(shell, self.script(min(self.cloud.vms)).splitlines()[0])

    def test_an_own_start_script_in_base64(self) -> None:
        self.cloud.context |= {"START_SCRIPT_BASE64": base64.b64encode(b"echo mine\n").decode()}
        self.start()
        self.assertTrue(self.script(100).endswith("echo mine\n"))

    def test_a_start_script_in_another_language_is_refused(self) -> None:
        self.cloud.context |= {"START_SCRIPT": "#!/usr/bin/python3\n"}
        self.assertIn("START_SCRIPT is not a shell script", self.refused(BadJob))

    def test_a_start_script_that_is_no_base64_is_refused(self) -> None:
        for text in ("x", "//8="):
            self.cloud.context |= {"START_SCRIPT_BASE64": text}
            self.assertIn("START_SCRIPT_BASE64 is not text in base64", self.refused(BadJob))

    def test_a_job_larger_than_the_cloud(self) -> None:
        self.cloud.room = 3
        self.assertIn("time limit: not all 4 members run after 30 s; 1 are waiting: Cannot dispatch VM: No hosts with "
                      "enough capacity; all members are removed", self.refused())

    def test_more_ranks_than_cores(self) -> None:
        self.cloud.template = "<VCPU>1</VCPU>"
        self.assertIn("slots=2 is more than the 1 cores of a member", self.refused(BadJob))
        self.assertEqual([], self.cloud.group_templates)
        self.start(jobs.job(oversubscribe="true"))

    def test_shared_memory_of_a_template_is_that_of_the_job(self) -> None:
        self.cloud.template = "<HPC><AFFINITY>cpumem</AFFINITY><JOB>all</JOB><SHARED_MEMORY>64</SHARED_MEMORY></HPC>"
        self.start()
        self.assertEqual({'HPC=[AFFINITY="cpumem",JOB="wave-1",SHARED_MEMORY="64"]'},
                         {vm["more"].splitlines()[3] for vm in self.cloud.vms.values()})

    def test_other_text_in_hpc_of_a_template_is_refused(self) -> None:
        self.cloud.template = "<HPC><AFFINITY>x\"]\nNIC=[NETWORK=\"a</AFFINITY><SHARED_MEMORY>64</SHARED_MEMORY></HPC>"
        self.assertIn("HPC of the template has AFFINITY=", self.refused(BadJob))

    def test_no_addresses_left(self) -> None:
        self.cloud.leases = 3
        self.assertIn("Cannot get IP/MAC lease", self.refused())

    def test_a_member_fails(self) -> None:
        def fail() -> None:
            vm = self.cloud.vms.get(101)
            if vm and vm["state"] == ACTIVE:
                vm |= {"lcm": PROLOG_FAILURE, "error": "Wed Jan 1 10:00:00 : Error creating disk"}

        self.when("one.vm.action", fail)
        self.assertIn("wave-1-1 (rank 1) failed: Wed Jan 1 10:00:00 : Error creating disk", self.refused())

    def test_a_member_is_switched_off(self) -> None:
        def off() -> None:
            if all(vm["state"] != 2 for vm in self.cloud.vms.values()) and 103 in self.cloud.vms:
                self.cloud.vms[103] |= {"state": POWEROFF, "lcm": 0}

        self.when("one.vm.action", off)
        self.assertIn("wave-1-3 (rank 3) failed: its state is POWEROFF", self.refused())

    def test_a_member_is_deleted_during_the_start(self) -> None:
        def delete() -> None:
            if all(vm["state"] != 2 for vm in self.cloud.vms.values()):
                self.cloud.vms.pop(102, None)

        self.when("one.vm.action", delete)
        self.assertIn("wave-1-2 (rank 2) was deleted while the job started", self.refused())

    def test_a_member_that_boots_is_terminated_later(self) -> None:
        self.cloud.room = 3

        def busy() -> None:
            for vm in self.cloud.vms.values():
                vm.setdefault("busy", True)

        self.when("one.vm.updateconf", busy)
        self.refused()

    def test_interrupted_at_every_request(self) -> None:
        self.start()
        for at in range(len(self.cloud.requests)):
            cloud = self.useFixture(FakeOpenNebula())
            left = [at]
            server = cloud.server()
            original = server._do_request

            def request(method: str, parameters: Any, original: Any = original, left: list[int] = left) -> Any:
                answer = original(method, parameters)
                left[0] -= 1
                if left[0] == -1:  # the cloud has done it, but its answer is lost
                    raise KeyboardInterrupt
                return answer

            server.__dict__["_do_request"] = request
            self.assertRaises(KeyboardInterrupt, gang.start, OpenNebula(server), jobs.job(), "wave-1", self.clock.sleep,
                              self.clock)
            self.assertEqual(NOTHING, cloud.left(), at)

    def test_templates_by_name(self) -> None:
        self.start(jobs.job(opennebula="{template: mpi}"))
        for name, count in (("two", 2), ("none", 0)):
            job = jobs.job(opennebula=f"{{template: {name}}}")
            failed = self.assertRaises(BadJob, gang.start, OpenNebula(self.cloud.server()), job, "wave-9",
                                       self.clock.sleep, self.clock)
            self.assertIn(f"{count} templates are named '{name}'", str(failed))

    def test_wrong_credentials_are_said_without_them(self) -> None:
        server = pyone.OneServer(self.cloud.url, session="tenant:wrong-secret")
        failed = self.assertRaises(GangFailed, gang.start, OpenNebula(server), jobs.job(), "wave-1", self.clock.sleep,
                                   self.clock)
        self.assertIn("couldn't be authenticated, aborting call.; nothing was created", str(failed))
        self.assertEqual(0.0, self.clock.now)
        self.assertNotIn("wrong-secret", str(failed))

    def test_a_template_that_is_not_there(self) -> None:
        self.assertIn("Error getting virtual machine template [12]", self.refused(job=jobs.job(
            opennebula="{template: 12}")))
        self.assertEqual([], self.cloud.group_templates)

    def test_removal_touches_no_other_job(self) -> None:
        self.start()
        gang.start(OpenNebula(self.cloud.server()), jobs.job(), "wave-11", self.clock.sleep, self.clock)
        self.cloud._vmgroup_delete = lambda number: self.cloud.groups.pop(number) and number
        gang.remove(OpenNebula(self.cloud.server()), "wave-1", self.clock.sleep, self.clock)
        self.assertEqual({"wave-11"}, {vm["user"]["HPCJOB"] for vm in self.cloud.vms.values()})
        self.assertEqual(["wave-11"], list(self.cloud.groups.values()))
