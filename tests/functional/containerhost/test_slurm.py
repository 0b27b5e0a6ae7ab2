# SPDX-License-Identifier: Apache-2.0
"""Jobs of the real Slurm, with its controller and one node, have devices of the emulated host.

The node keeps jobs in control groups that deny them devices (ConstrainDevices), or by their processes' parents alone.
"""

import os
import re
import secrets
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import fixtures
import testtools

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.refusals import Request
from containerhost.allocation.states import State
from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.errors import DeviceHeld
from containerhost.inventory.scan import HostView
from containerhost.privileged import Privileged
from tests import levels
from tests.fakehost.control import FakeHostControl
from tests.waiting import await_that

COMMAND = Path(sys.executable).with_name("containerhost")
TIMEOUT = 60  # s
ADDRESS = "192.0.2.17"  # slurmd listens on no address of the loopback device's own (getaddrinfo(3), AI_ADDRCONFIG)
FIRST, SECOND, FUNCTION = "0000:3b:00.0", "0000:af:00.0", "0000:5e:00.1"
SERVER = Consumer("nova", "lxd", "instance-1", "7a1e")
CONFIG = """
ClusterName=test
SlurmctldHost={host}({address})
SlurmUser=root
SlurmctldPort={port}
SlurmdPort={node_port}
AuthInfo=socket={base}/munge.socket,cred_expire=8
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/spool
SlurmctldPidFile={base}/slurmctld.pid
SlurmdPidFile={base}/slurmd.pid
SlurmctldLogFile={base}/slurmctld.log
SlurmdLogFile={base}/slurmd.log
MailProg=/bin/true
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=1
CompleteWait=0
KillWait=1
ReturnToService=2
SlurmdParameters=config_overrides
{kind}
GresTypes=gpu,nic
Prolog={base}/prolog
Epilog={base}/epilog
HealthCheckProgram={base}/reconcile
HealthCheckInterval={interval}
NodeName={node} NodeAddr={address} CPUs={cpus} Gres={gres}
PartitionName=main Nodes=ALL Default=YES OverSubscribe=FORCE:8
"""
GROUPS = "ProctrackType=proctrack/cgroup\nTaskPlugin=task/cgroup\nPrologFlags=Alloc,Contain"
PARENTS = "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nPrologFlags=Alloc"
CGROUP_CONF = "CgroupAutomount=no\nConstrainDevices=yes\nIgnoreSystemdOnFailure=yes\n"  # no systemd here


class SlurmCluster(fixtures.Fixture):
    """Run Slurm's controller and one node, which is this host.

    :param kind: lines of slurm.conf: how the node keeps jobs
    :param owners: directory of the allocation records
    :param interval: seconds between two health checks; 0 for none
    :ivar base: everything is below it
    """

    def __init__(self, kind: str, owners: Path, interval: int) -> None:
        self._kind = kind
        self._owners = owners
        self._interval = interval
        self.node = f"node{secrets.token_hex(3)}"  # whose groups no other run of the tests has

    def _setUp(self) -> None:
        self.base = Path(self.useFixture(fixtures.TempDir(rootdir="/var/tmp")).path)
        self.base.chmod(0o755)
        for name in ("state", "spool"):
            (self.base / name).mkdir()
        self.environment = os.environ | {"SLURM_CONF": f"{self.base}/slurm.conf"}
        (self.base / "key").write_bytes(secrets.token_bytes(128))
        (self.base / "key").chmod(0o600)
        subprocess.run(["ip", "address", "replace", f"{ADDRESS}/32", "dev", "lo"], check=True)
        gres = subprocess.run([COMMAND, "slurm", "gres", "--node", self.node], check=True, text=True,
                              capture_output=True).stdout
        (self.base / "gres.conf").write_text(gres)
        (self.base / "cgroup.conf").write_text(CGROUP_CONF)
        port, node_port = (free_port() for _ in range(2))
        (self.base / "slurm.conf").write_text(CONFIG.format(
            host=socket.gethostname(), address=ADDRESS, base=self.base, kind=self._kind, node=self.node, port=port,
            node_port=node_port, interval=self._interval, cpus=os.cpu_count(), gres=re.search(r" Gres=(\S+)", gres)[1]))
        exported = {"PATH", "FAKEHOST_CONTROL", "SLURM_CONF"}
        lines = [f"export {name}={shlex.quote(self.environment[name])}" for name in sorted(exported)]
        for name, start, options in (
                ("prolog", "", ""), ("epilog", "", ""),
                # Slurm starts a health check whether the one before has ended or not.
                ("reconcile", f"flock --nonblock --conflict-exit-code 0 {self.base}/lock", f"--node {self.node}")):
            (self.base / name).write_text("\n".join((
                "#!/bin/bash", *lines,
                f"exec {start} {COMMAND} slurm {name} {options} --owners {self._owners} 2>> {self.base}/{name}.log",
                "")))
            (self.base / name).chmod(0o755)
        self.start("munged", "--force", f"--key-file={self.base}/key", f"--socket={self.base}/munge.socket",
                   f"--pid-file={self.base}/munged.pid", f"--log-file={self.base}/munged.log",
                   f"--seed-file={self.base}/munged.seed")
        self.start("slurmctld")
        self.start("slurmd", "-N", self.node)
        self.addCleanup(self.cancel_all)
        self.await_node("idle")

    def start(self, program: str, *options: str) -> None:
        """Start a program that makes itself a daemon, and ends with the fixture."""
        subprocess.run([program, *options], env=self.environment, check=True, timeout=TIMEOUT, capture_output=True)
        await_that((self.base / f"{program}.pid").exists, self.logs)
        self.addCleanup(self.stop, program)

    def stop(self, program: str, number: int = signal.SIGTERM) -> None:
        file = self.base / f"{program}.pid"
        if file.exists():
            pid = int(file.read_text())
            os.kill(pid, number)
            await_that(lambda: not os.path.exists(f"/proc/{pid}"), f"{program} ends")
            file.unlink(missing_ok=True)

    def call(self, *words: str) -> str:
        """Run a command of Slurm, and return what it prints."""
        done = subprocess.run(words, env=self.environment, check=False, text=True, capture_output=True, timeout=TIMEOUT,
                              cwd="/")
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(words)}: {done.stderr}")
        return done.stdout

    def cancel_all(self) -> None:
        self.call("scancel", "--user=root", "--signal=KILL", "--full")
        self.call("scancel", "--user=root")
        await_that(lambda: not self.call("squeue", "--noheader"), self.logs)

    def submit(self, script: str, *options: str) -> str:
        """Submit a batch job, and return its number. What it prints is in the file ``NUMBER.out`` below ``base``."""
        return self.call("sbatch", "--parsable", f"--output={self.base}/%j.out", *options, f"--wrap={script}").strip()

    def await_start(self, job: str) -> None:
        """Wait until a job's script runs; its state says RUNNING while its prolog runs."""
        await_that((self.base / f"{job}.out").exists, self.logs, TIMEOUT)

    def drained(self) -> str:
        """Return the state of the node and the reason for it."""
        return self.call("sinfo", "--noheader", f"--nodes={self.node}", "--format=%T %E").strip()

    def await_node(self, beginning: str) -> None:
        await_that(lambda: self.drained().startswith(beginning), lambda: f"node is {self.drained()}: {self.logs()}",
                   TIMEOUT)

    def logs(self) -> str:
        return "\n".join(f"{path.name}:\n{path.read_text(errors='replace')[-2000:]}"
                         for path in sorted(self.base.glob("*.log")))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


class SlurmTestCase(testtools.TestCase):
    """:cvar kind, interval: of :class:`SlurmCluster`"""

    kind = PARENTS
    interval = 0

    def setUp(self) -> None:
        super().setUp()
        self.owners = Path(self.useFixture(fixtures.TempDir()).path)
        self.store = AllocationStore(self.owners)
        self.slurm = self.useFixture(SlurmCluster(self.kind, self.owners, self.interval))
        self.waiting = self.slurm.base / "go"

    def job(self, *options: str, script: str = "true") -> str:
        """Submit a job that runs until :meth:`go_on`."""
        return self.slurm.submit(f"{script}; while [ ! -e {self.waiting} ]; do sleep 0.1; done", *options)

    def go_on(self) -> None:
        self.waiting.touch()

    def holders(self) -> dict[str, str]:
        return {name: str(record.consumer) for name, record in self.store.records().items()}

    def await_free(self) -> None:
        await_that(lambda: not self.store.records(), lambda: f"{self.holders()}: {self.slurm.logs()}", TIMEOUT)

    def run_words(self, *words: str) -> str:
        """Return what `containerhost run` says, which cannot have the devices."""
        done = subprocess.run([COMMAND, "run", "--owners", self.owners, *words, "--", "true"], check=False, text=True,
                              capture_output=True, timeout=TIMEOUT)
        self.assertEqual(1, done.returncode, done.stderr)
        return done.stderr

    def as_nova(self, *devices: str) -> DeviceAllocator:
        """Allocate devices as nova-compute does for a server."""
        allocator = DeviceAllocator(self.store, HostView, Privileged())
        allocator.acquire([Request(name) for name in devices], SERVER)
        return allocator


class JobTest(SlurmTestCase):
    @levels.exhaustive("a job in a control group is refused likewise")
    def test_nobody_else_gets_what_a_job_has(self) -> None:
        self.check_job_alone_has_its_devices()

    def check_job_alone_has_its_devices(self, script: str = "true") -> list[str]:
        """:returns: what the script printed"""
        job = self.job("--gres=gpu:1,nic:1", script=f"echo $SLURM_JOB_GPUS $SLURM_JOB_NICS; {script}")
        self.slurm.await_start(job)
        held = self.holders()
        self.assertEqual({FIRST: f"job/{job} (slurm test)", FUNCTION: f"job/{job} (slurm test)"}, held)
        self.assertEqual({State.ATTACHED}, {record.state for record in self.store.records().values()})
        self.assertIn("1 GPUs", self.run_words("--gpu", "2"))
        for name in held:
            self.assertIn(f"job/{job} (slurm test) holds {name}", self.run_words("--device", name))
            self.assertRaises(DeviceHeld, self.as_nova, name)
        self.go_on()
        self.await_free()
        self.as_nova(*held)
        devices, *said = (self.slurm.base / f"{job}.out").read_text().splitlines()
        self.assertEqual("0 mlx4_1", devices)
        return said

    def test_job_waits_for_what_another_has_and_the_node_goes_on(self) -> None:
        nova = self.as_nova(FIRST)
        job = self.job("--gres=gpu:2")
        reason = f"containerhost: device {FIRST} cannot be given to job/{job} (slurm test): {SERVER} holds {FIRST}"
        await_that(lambda: f"AdminComment={reason}" in self.slurm.call("scontrol", "show", "job", job), self.slurm.logs)
        said = subprocess.run(["srun", "--gres=gpu:2", "true"], env=self.slurm.environment, check=False, text=True,
                              capture_output=True, timeout=TIMEOUT, cwd="/").stderr
        self.assertIn(f"{SERVER} holds {FIRST}", said)
        self.assertEqual({FIRST: str(SERVER)}, self.holders())
        self.assertFalse((self.slurm.base / f"{job}.out").exists())
        self.assertRegex(self.slurm.drained(), "^(idle|mixed|allocated|completing) none$")
        nova.release(SERVER)
        self.slurm.await_start(job)
        self.assertEqual({FIRST: f"job/{job} (slurm test)", SECOND: f"job/{job} (slurm test)"}, self.holders())


class ConstrainedJobTest(JobTest):
    kind = GROUPS

    def test_nobody_else_gets_what_a_job_has(self) -> None:
        nodes = ("nvidia0", "nvidia1", "dri/renderD128", "dri/renderD129", "infiniband/uverbs1", "infiniband/uverbs2")
        said = self.check_job_alone_has_its_devices("; ".join(f"head -c1 /dev/{node}" for node in nodes))
        denied = [node for node, line in zip(nodes, said, strict=True) if "Operation not permitted" in line]
        self.assertEqual(["nvidia1", "dri/renderD129", "infiniband/uverbs2"], denied, said)

    @levels.exhaustive("a job without a control group waits likewise")
    def test_job_waits_for_what_another_has_and_the_node_goes_on(self) -> None:
        super().test_job_waits_for_what_another_has_and_the_node_goes_on()


class HealthCheckTest(SlurmTestCase):
    interval = 1

    def test_node_is_drained_until_a_device_can_be_cleaned(self) -> None:
        control = FakeHostControl.from_environment()
        job = self.job("--gres=gpu:1")
        self.slurm.await_start(job)
        control.remove(FIRST)
        try:
            self.go_on()
            self.slurm.await_node(f"drained containerhost: this host has no device {FIRST}")
            self.assertEqual(State.BLOCKED, self.store.records()[FIRST].state)
        finally:
            control.restore(FIRST)
        self.slurm.await_node("idle none")
        self.assertEqual({}, self.holders())

    def test_restart_of_slurmd_and_a_killed_prolog(self) -> None:
        job = self.job("--gres=gpu:1")
        self.slurm.await_start(job)
        self.slurm.stop("slurmd", signal.SIGKILL)
        self.slurm.start("slurmd", "-N", self.slurm.node)
        self.assertEqual({FIRST: f"job/{job} (slurm test)"}, self.holders())
        self.go_on()
        self.await_free()
        # As left by a prolog that is killed before its job starts.
        DeviceAllocator(self.store, HostView, Privileged()).acquire(
            [Request(FIRST)], Consumer("slurm", "job", "4711", "test"))
        self.await_free()
