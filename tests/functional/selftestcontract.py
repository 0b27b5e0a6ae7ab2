# SPDX-License-Identifier: Apache-2.0
"""Test `containerhost selftest` on an engine: every step on an emulated host, and what a kill leaves."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import fixtures

from containerhost.allocation.store import AllocationStore
from containerhost.inventory.scan import scan
from containerhost.inventory.taints import TaintFile
from containerhost.linux.sysfs import Host
from containerhost.operator.selftest.steps import NAME
from tests.waiting import await_that

COMMAND = Path(sys.executable).with_name("containerhost")
TIMEOUT = 240  # s
GPU, FUNCTION, PEER = "0000:3b:00.0", "0000:5e:00.1", "0000:5e:00.2"


class SelfTestContract:
    """:ivar store: the records that the engine's base class compares after each test"""

    engine: Any
    allocator: Any
    store: AllocationStore
    useFixture: Any
    assertEqual: Any
    assertIn: Any

    def options(self) -> tuple[str, ...]:
        """Return those that lead the command to the tests' own daemon."""
        raise NotImplementedError

    def has_image(self) -> bool:
        raise NotImplementedError

    def command(self, *words: str) -> list[str]:
        self.output = Path(self.useFixture(fixtures.TempDir()).path) / "selftest.json"
        return [str(COMMAND), "selftest", *self.options(), "--owners", str(self.store.directory), "--output",
                str(self.output), *words]

    def assert_nothing_left(self) -> None:
        self.assertEqual((False, {}, False), (self.engine.exists(NAME), self.store.records(), self.has_image()))

    def test_every_step_on_free_devices(self) -> None:
        preview = subprocess.run(self.command("--dry-run"), capture_output=True, text=True, timeout=TIMEOUT, check=True)
        self.assertIn(f"{GPU}, {FUNCTION}", preview.stdout)
        self.assert_nothing_left()
        done = subprocess.run(self.command("--json"), capture_output=True, text=True, timeout=TIMEOUT, check=False)
        told = json.loads(done.stdout or "{}")
        steps = {row["step"]: row["outcome"] for row in told.get("steps", ())}
        doctor = steps.pop("doctor", None)
        absent = (f"tool of {GPU} inside", f"computation of {GPU} inside", f"tool of {FUNCTION} inside")
        each = ("take {} while it runs", "give {} while it runs", "take {} from a process that has it open")
        passed = ("image", "give at boot", *(step.format(device) for step in each for device in (GPU, FUNCTION)),
                  "clean when the container has ended", "second hand-over", "clean up")
        self.assertEqual(dict.fromkeys(absent, "not here") | dict.fromkeys(passed, "passed"), steps,
                         (done.stderr, told.get("steps")))
        self.assertEqual(1 if doctor == "failed" else 0, done.returncode)
        details = {row["step"]: row["detail"] for row in told["steps"]}
        blocked = re.search(r"blocked until the container ends: .* \(run ([0-9a-f-]{36})\)",
                            details[f"take {GPU} from a process that has it open"])
        self.assertEqual(("clean", True), (details[f"take {FUNCTION} from a process that has it open"][:5],
                                           bool(blocked)), details)
        written = self.output.read_text()
        self.assertEqual(steps.keys() | {"doctor"}, {row["step"] for row in json.loads(written)["steps"]})
        self.assertEqual(0, written.count(blocked[1]), "an id of the run is in what is sent")
        self.assertEqual([3, 3], [self.store.hand_overs(device)[-1]["number"] for device in (GPU, FUNCTION)])
        self.assert_nothing_left()

    def test_two_functions_reach_each_other(self) -> None:
        before = [scan().get(device).rdma for device in (FUNCTION, PEER)]
        done = subprocess.run(self.command("--json", "--pair", "--vf", FUNCTION, "--vf", PEER), capture_output=True,
                              text=True, timeout=TIMEOUT, check=False)
        rows = json.loads(done.stdout or "{}").get("steps", ())
        steps = {row["step"]: row["outcome"] for row in rows}
        # Emulated functions have interfaces and no verbs.
        rdma = "failed" if shutil.which("rping") else "not here"
        self.assertEqual(["passed", "passed", rdma, "passed", "passed"], [steps.get(step) for step in (
            "give a function to each of two containers", "ping between them", "rping between them",
            "clean when both have ended", "clean up")], (done.stderr, rows))
        self.assertEqual(before, [scan().get(device).rdma for device in (FUNCTION, PEER)])
        self.assert_nothing_left()

    def test_drained_device_is_tested_before_it_is_untainted(self) -> None:
        taints = TaintFile(Host())
        taints.taint(FUNCTION, "replaced")
        try:
            refused = subprocess.run(self.command("--dry-run"), capture_output=True, text=True, timeout=TIMEOUT,
                                     check=False)
            self.assertEqual(0, refused.stdout.count(FUNCTION))
            done = subprocess.run(self.command("--json", "--vf", FUNCTION), capture_output=True, text=True,
                                  timeout=TIMEOUT, check=False)
            steps = {row["step"]: row["outcome"] for row in json.loads(done.stdout or "{}").get("steps", ())}
            self.assertEqual("passed", steps.get("second hand-over"), (done.stderr, steps))
            self.assertEqual(0, done.stdout.count("replaced"), "the taint is none of its failures")
            self.assertEqual("replaced", scan().get(FUNCTION).taint)
        finally:
            taints.untaint(FUNCTION)
        self.assert_nothing_left()

    def test_killed_test_leaves_nothing(self) -> None:
        with subprocess.Popen(self.command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            await_that(lambda: self.engine.exists(NAME) and self.engine.pid(NAME), "its container runs")
            self.assertEqual("run", next(iter(self.store.records().values())).consumer.driver)
            process.kill()
            process.wait(TIMEOUT)
        await_that(lambda: not self.engine.exists(NAME) and not self.store.records() and not self.has_image(),
                   "nothing is left")

    def test_next_test_removes_what_a_killed_one_left(self) -> None:
        """Killed with the process that cleans up after it; other drivers keep the devices from everybody."""
        with subprocess.Popen(self.command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            await_that(lambda: self.engine.exists(NAME) and self.engine.pid(NAME), "its container runs")
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            for pid in (*map(int, children), process.pid):
                os.kill(pid, signal.SIGKILL)
            process.wait(TIMEOUT)
        complaints = self.allocator.reconciler.reconcile_runs()
        self.assertEqual((len(complaints), True), (len(self.store.records()), self.engine.exists(NAME)), complaints)
        self.assertIn(f"the configuration of container {NAME} has it", " ".join(complaints))
        done = subprocess.run(self.command("--json", "--vf", FUNCTION), capture_output=True, text=True, timeout=TIMEOUT,
                              check=False)
        steps = {row["step"]: row["outcome"] for row in json.loads(done.stdout or "{}").get("steps", ())}
        self.assertEqual("passed", steps.get("second hand-over"), (done.stderr, steps))
        self.assert_nothing_left()
