# SPDX-License-Identifier: Apache-2.0
"""Test what examples/breakfix decides, and how the demo reads what a server's program did."""

import importlib.util
import io
import json
import subprocess
from contextlib import redirect_stdout
from types import ModuleType
from typing import Any
from unittest import mock

import testtools

from tools.showcase import breakfix

GPU, OTHER = "0000:3b:00.0", "0000:af:00.0"


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("repair", breakfix.REPAIR)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def device(name: str = GPU, **more: Any) -> dict[str, Any]:
    return {"device": name, "kind": "gpu", "complaints": ["Xid 79"], "taint": None, "state": "detached",
            "blocked": None, "instance_uuid": None, **more}


class RepairTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.repair = loaded()
        self.faults = self.repair.Faults()

    def notify(self, *devices: dict[str, Any], host: str = "node1") -> dict[str, Any]:
        """Return the line that is printed."""
        payload = {"nova_object.data": {"host": host, "devices": [{"nova_object.data": each} for each in devices]}}
        with redirect_stdout(io.StringIO()) as output:
            self.faults.error({}, f"nova-compute:{host}", "device_faults.update", payload, {})
        return dict(json.loads(output.getvalue()))

    def test_last_list_of_each_host_decides(self) -> None:
        self.notify(device(), host="node2")
        self.assertEqual([device(OTHER)], self.notify(device(OTHER))["devices"])
        self.assertEqual([("node1", OTHER), ("node2", GPU)], sorted(self.faults.repairs()))
        self.notify(device(), device(OTHER))
        self.notify(host="node2")
        self.assertEqual([("node1", GPU), ("node1", OTHER)], sorted(self.faults.repairs()))

    def test_what_a_container_uses_or_the_operator_keeps_is_left(self) -> None:
        for state in ("free", "detached", "blocked"):
            self.assertTrue(self.repair.is_repairable(device(state=state)))
        for more in ({"state": "attached"}, {"state": "claimed"}, {"state": "prepared"}, {"state": "cleaning"},
                     {"taint": "fan is replaced"}, {"kind": "net"}, {"kind": None}):
            self.assertFalse(self.repair.is_repairable(device(**more)), more)

    def test_command_is_run_for_the_device_and_its_end_is_told(self) -> None:
        def told(**done: Any) -> dict[str, Any]:
            with redirect_stdout(io.StringIO()) as output, mock.patch("subprocess.run", **done) as run:
                self.repair.repair(("ssh", "root@{host}", "containerhost", "scrub", "{device}"), "node1", GPU)
            self.assertEqual(["ssh", "root@node1", "containerhost", "scrub", GPU], run.call_args.args[0])
            found = dict(json.loads(output.getvalue()))
            self.assertEqual(("node1", GPU), (found["host"], found["repaired"]))
            return found

        ended = subprocess.CompletedProcess((), 1, "", "it does not answer\n")
        found = told(return_value=ended)
        self.assertEqual((1, "it does not answer"), (found["status"], found["output"]))
        for error in (FileNotFoundError("no ssh"), subprocess.TimeoutExpired("ssh", 600)):
            self.assertIsNone(told(side_effect=error)["status"])


class TasksTest(testtools.TestCase):
    def test_lost_and_repeated_tasks_are_found(self) -> None:
        done = [f"done {task} {GPU}" for task in (0, 2, 1, 4, 3)]
        self.assertEqual("", breakfix.disorder(done))
        self.assertEqual("", breakfix.disorder([*done, f"done 6 {GPU}"]))  # task 5 is still worked on
        self.assertIn("twice", breakfix.disorder([*done, f"done 3 {OTHER}"]))
        self.assertIn("not done", breakfix.disorder([*done, f"done 9 {OTHER}"]))
        self.assertIn("lost", breakfix.disorder([*done, f"lost 5 {OTHER}"]))

    def test_gpus_that_work_now(self) -> None:
        lines = [f"start {GPU}", f"start {OTHER}", f"done 0 {GPU}", f"stop {OTHER}"]
        self.assertEqual({GPU}, breakfix.working(lines))
        self.assertEqual({GPU, OTHER}, breakfix.working([*lines, f"start {OTHER}"]))
