# SPDX-License-Identifier: Apache-2.0
"""Commands with devices: for their lives, whatever ends them. Real processes and control groups, described hardware."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import fixtures
import testtools

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.store import AllocationStore
from containerhost.inventory.scan import HostView
from containerhost.linux.process import processes, rungroup
from containerhost.linux.process.rungroup import RunGroup
from containerhost.linux.sysfs import Host
from containerhost.operator.runtimes.run import Runner, Wanted
from containerhost.privileged import Privileged
from tests.fakehost import description, tree
from tests.unit.containerhost.hosts import MEMORY
from tests.waiting import await_that

ROOT = Path(__file__).parents[4]
GPUS = {"0000:3b:00.0", "0000:af:00.0"}
PROGRAM = "import sys; from tests.kernel.containerhost.operator import test_runs; test_runs.main(*sys.argv[1:])"
TIMEOUT = 120  # s


class Hardware(Privileged):
    """Stand for described GPUs: nobody has them open, and they can be reset."""

    def users(self, nodes: Collection[tuple[int, int]]) -> tuple[str, ...]:
        return ()

    def reset_gpu(self, vendor: str, address: str, others: Collection[str] = ()) -> bool:
        return True


def allocator(directory: Path) -> DeviceAllocator:
    host = Host(directory / "host")
    return DeviceAllocator(AllocationStore(directory / "owners"), lambda: HostView(host), Hardware(), host=host)


def main(directory: str, gpus: str, *command: str) -> None:
    """Run a command as `containerhost run` does, on a described host."""
    path = Path(directory)
    runner = Runner(AllocationStore(path / "owners"), allocator(path), Host(path / "host"))
    sys.exit(runner.run(command, Wanted(int(gpus))))


class RunTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir(rootdir=MEMORY)).path)
        tree.write(description.load("small"), self.directory / "host")
        self.store = AllocationStore(self.directory / "owners")
        self.began = self.directory / "began"

    def started(self, gpus: int, script: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, self.directory, str(gpus), "sh", "-c", script, self.began], cwd=ROOT,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def ended(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        out, err = process.communicate(timeout=TIMEOUT)
        return process.returncode, out + err

    def running(self, gpus: int, script: str, trap: str = "") -> subprocess.Popen[str]:
        """Start a command that runs when this returns.

        :param trap: what it does at SIGTERM
        """
        process = self.started(gpus, f"trap '{trap}' TERM; touch $0; {script}" if trap else f"touch $0; {script}")
        await_that(self.began.exists, "the command runs", TIMEOUT)
        return process

    def group(self) -> tuple[int, ...]:
        """Return the processes of the only run, without its supervisor."""
        (name,) = {record.consumer.uuid for record in self.store.records().values()}
        return rungroup.members(name)

    def killed(self, gpus: int, script: str, trap: str = "") -> None:
        process = self.running(gpus, script, trap)
        process.kill()
        process.wait()

    def test_command_has_devices_until_it_ends(self) -> None:
        script = f"echo $CONTAINERHOST_DEVICES; cat /proc/self/cgroup; ls {self.store.directory}; exit 3"
        status, said = self.ended(self.started(2, script))
        self.assertEqual(3, status, said)
        self.assertIn(",".join(sorted(GPUS)), said)
        self.assertEqual(2, said.count(".json"))
        self.assertEqual({}, self.store.records())
        (name,) = set(re.findall(f":{rungroup.TOP}/(.*)/{rungroup.LEAF}", said))
        self.assertEqual([], list(rungroup.ROOT.glob(f"*{rungroup.TOP}/{name}")))

    def test_what_a_command_leaves_running_ends_with_it(self) -> None:
        status, said = self.ended(self.started(1, "setsid sleep 1001 & echo $!"))
        self.assertEqual(0, status, said)
        self.assertFalse(processes.runs(int(said.split()[0])))
        self.assertEqual({}, self.store.records())

    def test_signals_reach_the_command(self) -> None:
        process = self.running(1, "while :; do sleep 0.1; done", trap="exit 7")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(7, self.ended(process)[0])
        self.assertEqual({}, self.store.records())

    def test_next_run_has_what_a_killed_one_left(self) -> None:
        self.killed(2, "exec sleep 1001")
        self.assertEqual(GPUS, self.store.records().keys())
        await_that(lambda: not self.group(), "the command ends with its supervisor")
        (name,) = {record.consumer.uuid for record in self.store.records().values()}
        self.assertEqual((0, ""), self.ended(self.started(2, "")))
        self.assertEqual({}, self.store.records())
        self.assertEqual([], list(rungroup.ROOT.glob(f"*{rungroup.TOP}/{name}")))

    def test_devices_are_kept_while_the_command_outlives_its_supervisor(self) -> None:
        self.killed(2, "while :; do sleep 0.1; done", trap=":")
        status, said = self.ended(self.started(1, ""))
        self.assertEqual(1, status)
        self.assertIn("this host has 0 GPUs", said)
        self.assertEqual(GPUS, self.store.records().keys())
        left = allocator(self.directory)
        self.assertEqual((), left.reconciler.reconcile("nova", "lxd", ()))
        self.assertEqual(GPUS, self.store.records().keys())
        for pid in self.group():
            with contextlib.suppress(ProcessLookupError):  # one of its `sleep`
                os.kill(pid, signal.SIGKILL)
        await_that(lambda: not self.group(), "the command ends")
        self.assertEqual((), left.reconciler.reconcile("nova", "lxd", ()))
        self.assertEqual({}, self.store.records())


class BindingTest(testtools.TestCase):
    def test_cores_of_a_run_are_those_that_its_processes_are_bound_to(self) -> None:
        # Containers of other tests may have all cores meanwhile.
        self.useFixture(fixtures.MonkeyPatch("containerhost.linux.process.rungroup.TOP", "/containerhost-run-test"))
        group, core = RunGroup("of-a-test"), min(os.sched_getaffinity(0))
        group.enter()
        try:
            self.assertEqual(frozenset(), rungroup.cores())
            bound = subprocess.Popen(["taskset", "--cpu-list", str(core), "sleep", "1001"])
            await_that(lambda: rungroup.cores() == {core}, "its core is known")
        finally:
            group.end()
        self.assertEqual(-signal.SIGTERM, bound.wait())
        self.assertEqual(frozenset(), rungroup.cores())

    def test_memory_comes_from_the_nodes(self) -> None:
        script = ("from containerhost.linux.process import memorypolicy; memorypolicy.bind([0]); "
                  "print(open({!r}).read())")
        done = subprocess.run([sys.executable, "-c", script.format("/proc/self/numa_maps")], cwd=ROOT, check=True,
                              capture_output=True, text=True, timeout=TIMEOUT)
        self.assertIn(" bind:0 ", done.stdout)
        script = "from containerhost.linux.process import memorypolicy; memorypolicy.bind([63])"
        failed = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False, capture_output=True, text=True,
                                timeout=TIMEOUT)
        self.assertIn("memory cannot be bound to NUMA nodes 63: Invalid argument", failed.stderr)
