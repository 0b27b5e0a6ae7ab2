# SPDX-License-Identifier: Apache-2.0
"""Parse Slurm's output despite hostile text of users; refuse devices that cannot be allocated."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fixtures
import testtools
from click.testing import CliRunner

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.refusals import Request
from containerhost.allocation.states import State
from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.errors import EngineBusy, HostActionFailed, SpecError
from containerhost.inventory.scan import HostView
from containerhost.inventory.taints import TaintFile
from containerhost.operator.cli import main
from containerhost.operator.slurm import jobs
from containerhost.operator.slurm.client import Slurm
from containerhost.operator.slurm.jobs import JobDevices
from tests.unit.containerhost.allocation.allocatorcase import Willing
from tests.unit.containerhost.hosts import Broken

FIRST, SECOND = "0000:3b:00.0", "0000:af:00.0"
# Slurm 22.05.8 of Debian 12, `slurmd -G`.
GRES = """\
slurmd: Gres Name=gpu Type=a100 Count=1 Index=128 ID=7696487 File=/dev/nvidia0,/dev/dri/renderD128 Cores=0 CoreCnt=2 \
Links=-1,0
slurmd: Gres Name=gpu Type=a100 Count=1 Index=1 ID=7696487 File=/dev/nvidia1 Cores=1 CoreCnt=2 (null)
slurmd: Gres Name=nic Type=vf Count=2 Index=0 ID=6515054 File=/dev/infiniband/uverbs[4-5] Cores=1 CoreCnt=2 (null)
slurmd: Gres Name=nic Type=vf Count=2 Index=0 ID=6515054 File=/dev/infiniband/uverbs[1-2] Cores=0 CoreCnt=2 (null)
slurmd: Gres Name=craynetwork Type=(null) Count=4 Index=0 ID=1 File=/dev/kfd Cores=0 CoreCnt=2 (null)
"""
JOB = """\
JobId=7 {array}JobName={name}
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   JOB_GRES=gpu:a100:1,nic:vf:1
     Nodes={nodes} CPU_IDs=0 Mem=0 GRES={gres}
   Command=(null)
   AdminComment=containerhost: old

"""
NONE = "JobId=7 JobName=x\n     Nodes=node1 CPU_IDs=0 Mem=0 GRES=\n"


class Commands(fixtures.Fixture):
    """Answer for the commands of Slurm.

    :ivar answers: beginning of a command's words -> what it prints; a command without an answer fails
    :ivar called: the commands, in order
    """

    def _setUp(self) -> None:
        self.answers = {"slurmd -G": GRES, "sinfo": "none\n", "squeue": "", "scontrol update": "",
                        "scontrol requeue": "", "scancel": ""}
        self.called: list[str] = []
        self.useFixture(fixtures.MonkeyPatch("containerhost.linux.run.run", self.run))
        self.useFixture(fixtures.MonkeyPatch("containerhost.operator.slurm.client.run", self.run))

    def run(self, command: Sequence[str], timeout: float, **options: Any) -> subprocess.CompletedProcess[str]:
        words = " ".join(command)
        self.called.append(words)
        found = next((text for start, text in self.answers.items() if words.startswith(start)), None)
        return subprocess.CompletedProcess(command, 1 if found is None else 0, found or "", found or "it fails")

    def changes(self) -> list[str]:
        return [words for words in self.called if not words.startswith(("scontrol show", "slurmd", "sinfo", "squeue"))]


class ClientTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.commands = self.useFixture(Commands())
        self.slurm = Slurm("node1")

    def taken(self, gres: str, name: str = "x", nodes: str = "node1", array: str = "", more: str = "") -> Any:
        self.commands.answers["scontrol show job"] = more + JOB.format(gres=gres, name=name, nodes=nodes, array=array)
        return self.slurm.taken("7")

    def test_devices_are_in_the_order_of_slurm(self) -> None:
        self.assertEqual(
            {"gpu": (("/dev/nvidia0", "/dev/dri/renderD128"), ("/dev/nvidia1",)),
             "nic": tuple((f"/dev/infiniband/uverbs{number}",) for number in (4, 5, 1, 2))}, self.slurm.devices())

    def test_devices_of_a_job(self) -> None:
        self.assertEqual((("/dev/nvidia1",), ("/dev/infiniband/uverbs5",), ("/dev/infiniband/uverbs1",)),
                         self.taken("gpu:a100:1(IDX:1),nic:vf:2(IDX:1-2)"))
        self.assertEqual((("/dev/nvidia0", "/dev/dri/renderD128"), ("/dev/nvidia1",)),
                         self.taken("gpu:a100:2(IDX:0,1),gpu:b100:0(IDX:),craynetwork:1(IDX:0)"))
        self.assertEqual((), self.taken(""))

    def test_devices_on_one_node_of_several(self) -> None:
        self.commands.answers["scontrol show hostnames"] = "node1\nnode2\n"
        self.assertEqual((("/dev/nvidia1",),), self.taken("gpu:1(IDX:1)", nodes="node[1-2]"))
        self.assertRaises(SpecError, self.taken, "gpu:1(IDX:1)", nodes="node3")

    def test_first_task_of_an_array(self) -> None:
        more = JOB.format(gres="gpu:1(IDX:0)", name="x", nodes="node1", array="ArrayJobId=7 ").replace("=7 A", "=8 A")
        self.assertEqual((("/dev/nvidia1",),), self.taken("gpu:1(IDX:1)", array="ArrayJobId=7 ", more=more))

    def test_text_of_a_user_is_no_answer(self) -> None:
        line = "     Nodes=node1 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:0)"
        self.assertEqual((("/dev/nvidia1",),), self.taken("gpu:1(IDX:1)", name=line.strip()))
        for name in (f"x\n{line}", f"x\n\n{JOB.format(array='', name='y', nodes='node1', gres='gpu:1(IDX:0)')}"):
            self.assertIn("unambiguously", str(self.assertRaises(SpecError, self.taken, "gpu:1(IDX:1)", name)))

    def test_what_cannot_be_recorded_is_refused(self) -> None:
        for gres, words in (("shard:1(1/4,0/4)", "shares a GPU"), ("gpu:1(IDX:2)", "no device gpu:1(IDX:2)"),
                            ("gpu:1(IDX:N/A)", "no device")):
            self.assertIn(words, str(self.assertRaises(SpecError, self.taken, gres)))

    def test_jobs_without_those_that_have_ended(self) -> None:
        self.commands.answers["squeue"] = "7 RUNNING\n8 COMPLETED\n9 SUSPENDED\n10 COMPLETING\n11 PENDING\n12 NEWER\n"
        self.assertEqual({"7", "9", "10", "12"}, self.slurm.jobs())

    def test_controller_that_does_not_answer(self) -> None:
        self.commands.answers.clear()
        for act in (self.slurm.jobs, self.slurm.devices, self.slurm.reason, lambda: self.slurm.taken("7"),
                    lambda: self.slurm.requeue("7", "why", False)):
            self.assertRaises(HostActionFailed, act)


class ProcessesTest(testtools.TestCase):
    def test_groups_of_jobs(self) -> None:
        groups = {1: "/slurm_node1/uid_0/job_7/step_0", 2: "/system.slice/slurmstepd.scope/job_8/step_0/user",
                  3: "/lxc.payload.c1/slurm/uid_0/job_7", 4: "/slurm/uid_0/job_77", 5: "/slurm/uid_1/job_7"}
        self.useFixture(fixtures.MonkeyPatch("containerhost.operator.slurm.jobs.pids", lambda: iter(groups)))
        self.useFixture(fixtures.MonkeyPatch("containerhost.linux.controlgroups.of",
                                             lambda pid, host: {"": "/", "devices": groups[pid]}))
        self.assertEqual((1, 5), jobs.processes("7"))
        self.assertEqual((2,), jobs.processes("8"))


class JobDevicesTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.commands = self.useFixture(Commands())
        self.tree = self.useFixture(Broken("small"))
        self.running = dict[str, tuple[int, ...]]()
        self.useFixture(fixtures.MonkeyPatch("containerhost.operator.slurm.jobs._members",
                                             lambda: iter((1, job) for job in self.running)))
        self.store = AllocationStore(Path(self.useFixture(fixtures.TempDir()).path), host=self.tree.host)
        self.allocator = DeviceAllocator(self.store, lambda: HostView(self.tree.host), Willing(), host=self.tree.host)
        self.devices = JobDevices(self.store, self.allocator, Slurm("node1"))
        self.give("gpu:1(IDX:0)")

    def give(self, gres: str) -> None:
        self.commands.answers["scontrol show job"] = JOB.format(gres=gres, name="x", nodes="node1", array="")

    def hold(self, device: str, consumer: Consumer) -> None:
        self.allocator.acquire([Request(device)], consumer)

    def holders(self) -> dict[str, str]:
        return {name: str(record.consumer) for name, record in self.store.records().items()}

    def allocate(self) -> list[str]:
        self.devices.allocate("7", "c")
        return self.commands.changes()

    def test_job_has_its_devices_until_it_ends(self) -> None:
        self.assertEqual([], self.allocate())
        self.assertEqual([], self.allocate())
        self.assertEqual({FIRST: "job/7 (slurm c)"}, self.holders())
        self.assertTrue(self.devices.release("7", "c"))
        self.assertTrue(self.devices.release("7", "c"))
        self.assertEqual({}, self.holders())

    def test_job_without_devices(self) -> None:
        self.give("")
        self.assertEqual([], self.allocate())
        self.assertTrue(self.devices.release("7", "c"))

    def test_held_device_queues_the_job_again_and_drains_nothing(self) -> None:
        self.give("gpu:2(IDX:0-1)")
        self.hold(SECOND, Consumer("nova", "lxd", "c1", "u"))
        requeued, update = self.allocate()
        self.assertEqual("scontrol requeue 7", requeued)
        self.assertEqual(f"scontrol update JobId=7 AdminComment=containerhost: device {SECOND} cannot be given to "
                         f"job/7 (slurm c): lxd/c1 (nova u) holds {SECOND}", update)
        self.assertEqual({SECOND: "lxd/c1 (nova u)"}, self.holders())

    def test_job_that_cannot_be_queued_again_is_notified_and_cancelled(self) -> None:
        self.hold(FIRST, Consumer("nova", "lxd", "c1", "u"))
        del self.commands.answers["scontrol requeue"]
        _, _, notified, cancelled = self.allocate()
        self.assertIn("scontrol notify 7 containerhost: device", notified)
        self.assertEqual("scancel 7", cancelled)

    def test_device_of_a_job_that_is_gone_is_had(self) -> None:
        self.hold(FIRST, Consumer("slurm", "job", "6", "c"))
        self.assertEqual([], self.allocate())
        self.assertEqual({FIRST: "job/7 (slurm c)"}, self.holders())

    def test_sick_device_drains_the_node(self) -> None:
        self.tree.rebind(SECOND, "vfio-pci")
        self.give("gpu:1(IDX:1)")
        changes = self.allocate()
        self.assertIn("State=DRAIN Reason=containerhost: /dev/nvidia1 of gres.conf is not a node", changes[0])
        self.assertEqual("scontrol requeue 7", changes[1])
        self.assertEqual({}, self.holders())

    def test_tainted_device_queues_the_job_again_and_drains_nothing(self) -> None:
        TaintFile(self.tree.host).taint(SECOND, "new firmware")
        self.give("gpu:1(IDX:1)")
        requeued, update = self.allocate()
        self.assertEqual("scontrol requeue 7", requeued)
        self.assertIn("new firmware", update)

    def test_job_that_cannot_be_recorded_is_held_and_drains_nothing(self) -> None:
        self.give("shard:1(1/4,0/4)")
        held, update = self.allocate()
        self.assertEqual("scontrol requeuehold 7", held)
        self.assertIn("shares a GPU", update)

    def test_unreadable_record_drains_the_node(self) -> None:
        self.hold(FIRST, Consumer("nova", "lxd", "c1", "u"))
        next(self.store.directory.glob("*.json")).write_text("{")
        changes = self.allocate()
        self.assertIn("State=DRAIN Reason=containerhost: allocation record", changes[0])
        self.assertEqual("scontrol requeue 7", changes[1])

    def test_failure_without_a_controller_is_the_prologs(self) -> None:
        self.commands.answers.clear()
        self.assertRaises(HostActionFailed, self.allocate)
        self.assertEqual({}, self.holders())

    def test_device_that_is_not_clean_drains_the_node_until_it_is(self) -> None:
        self.allocate()
        nodes = self.tree.path("/dev/nvidia1").read_bytes()
        self.store.block(FIRST, "it burns")
        self.useFixture(fixtures.MonkeyPatch("containerhost.allocation.allocator.DeviceAllocator.release",
                                             lambda self, consumer: ("it burns",)))
        self.assertFalse(self.devices.release("7", "c"))
        drain = "scontrol update NodeName=node1 State=DRAIN Reason=containerhost: it burns"
        self.assertEqual([drain], self.commands.changes())
        self.commands.answers["sinfo"] = "containerhost: it burns\n"
        self.running["7"] = (1,)
        self.devices.reconcile()
        self.assertEqual([drain], self.commands.changes(), "a process of the job is left")
        self.assertEqual(State.BLOCKED, self.store.records()[FIRST].state)
        self.running.clear()
        self.tree.path("/dev/nvidia1").unlink()
        self.devices.reconcile()
        self.assertEqual(({}, [drain]), (self.holders(), self.commands.changes()), "another device is sick")
        self.tree.path("/dev/nvidia1").write_bytes(nodes)
        self.devices.reconcile()
        self.assertEqual([drain, "scontrol update NodeName=node1 State=RESUME"], self.commands.changes())

    def test_operators_reason_is_left_alone(self) -> None:
        self.commands.answers["sinfo"] = "new disk\n"
        self.tree.rebind(SECOND, "vfio-pci")
        self.give("gpu:1(IDX:1)")
        self.assertEqual("scontrol requeue 7", self.allocate()[0])
        self.tree.rebind(SECOND, "nvidia")
        self.devices.reconcile()
        self.assertNotIn("State=", " ".join(self.commands.changes()))

    def test_job_that_slurm_knows_keeps_its_devices(self) -> None:
        self.allocate()
        self.commands.answers["squeue"] = "7 RUNNING\n"
        self.devices.reconcile()
        self.assertEqual({FIRST: "job/7 (slurm c)"}, self.holders())
        self.commands.answers["squeue"], self.running = "", {"7": (1,)}
        self.devices.reconcile()
        self.assertEqual({FIRST: "job/7 (slurm c)"}, self.holders(), "Slurm has lost its state; a process is left")
        del self.commands.answers["squeue"]
        self.assertRaises(HostActionFailed, self.devices.reconcile)

    def test_health_check_leaves_an_allocation_alone_that_has_begun(self) -> None:
        self.hold(FIRST, Consumer("slurm", "job", "6", "c"))
        self.useFixture(fixtures.MonkeyPatch("containerhost.operator.slurm.jobs.CHECK_LOCK_TIMEOUT", 0.0))
        with self.devices._locked():
            self.assertRaises(EngineBusy, self.devices.reconcile)
        self.assertEqual({FIRST: "job/6 (slurm c)"}, self.holders())
        self.devices.reconcile()
        self.assertEqual({}, self.holders())

    def test_other_consumers_are_left_alone(self) -> None:
        self.hold(FIRST, Consumer("nova", "lxd", "c1", "u"))
        self.devices.reconcile()
        self.assertEqual({FIRST: "lxd/c1 (nova u)"}, self.holders())


class CommandTest(testtools.TestCase):
    def test_without_a_job_nothing_is_done(self) -> None:
        for command in ("prolog", "epilog"):
            for environment in ({}, {"SLURM_JOB_ID": "x; y", "SLURM_CLUSTER_NAME": "c"}, {"SLURM_JOB_ID": "7"}):
                done = CliRunner().invoke(main, ["slurm", command], env=environment)
                self.assertEqual(2, done.exit_code, done.output)
