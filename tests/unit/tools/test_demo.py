# SPDX-License-Identifier: Apache-2.0
"""Test how the commands of tools/demo start their stories, and what the demo makes of a self-test."""

import io
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import fixtures
import testtools

from tools.cloud.layout import Layout
from tools.showcase import __main__ as demo
from tools.showcase import selftest
from tools.showcase.report import Report

WORDS = ("--since", "1.5", "--here", "/home/anna", "breakfix", "--keep", "--json", "facts.json")


class StoryTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.calls: dict[str, mock.Mock] = {}
        for name in ("play_emulated", "perform", "fetch", "take_down_earlier", "Cloud"):
            self.calls[name] = mock.Mock(**({} if name == "Cloud" else {"return_value": 0}))
            self.useFixture(fixtures.MonkeyPatch(f"tools.showcase.__main__.{name}", self.calls[name]))
        for name, value in (("tools.showcase.__main__.alone", lambda layout: nullcontext()),
                            ("tools.showcase.stage.end_on_signals", lambda: None),
                            ("tools.showcase.stage.pairs", lambda: "pairs"),
                            ("tools.cloud.hardware.offers", lambda pairs: (pairs,)), ("os.geteuid", lambda: 0)):
            self.useFixture(fixtures.MonkeyPatch(name, value))

    def run_demo(self, *words: str) -> None:
        with mock.patch.object(sys, "argv", ["demo", *words]), redirect_stdout(io.StringIO()):
            self.assertEqual(0, self.assertRaises(SystemExit, demo.main.main, words).code)

    def test_command_runs_itself_on_the_emulated_host(self) -> None:
        self.run_demo(*WORDS)
        command, layout, keep = self.calls["play_emulated"].call_args.args
        self.assertEqual(("--playing", True), (command[3], keep))
        self.assertEqual(Path(demo.CHECKOUT / ".demo" / "breakfix"), layout.directory)
        self.calls["Cloud"].assert_not_called()
        self.run_demo(*command[3:])
        self.calls["play_emulated"].assert_called_once()
        self.assertEqual((layout,), self.calls["Cloud"].call_args.args[:1])
        self.assertEqual(("pairs",), self.calls["Cloud"].call_args.args[1])
        json_file, use = self.calls["perform"].call_args.args[3:]
        self.assertEqual((Path("/home/anna/facts.json"), True), (json_file, "--flavor hpc.gpu2" in use[0]))

    def test_options_of_a_story_reach_it(self) -> None:
        with mock.patch.object(demo, "AnsibleStory") as told:
            self.run_demo("--playing", "ansible", "--package", __file__)
            self.calls["perform"].call_args.args[2]()
        self.assertEqual(Path(__file__), told.call_args.args[2])

    def test_each_story_has_a_cloud_of_its_own_that_down_finds(self) -> None:
        with mock.patch.object(Layout, "in_use", True):
            directories = [layout.directory.name for layout, _ in demo.in_use()]
        self.assertEqual(sorted((".demo", "horizon", "mpi", "slurm", "breakfix", "aicloud", "ansible", "elastic",
                                 "soak")),
                         sorted(directories))


class SelfTestTest(testtools.TestCase):
    def note(self, *steps: tuple[str, str], error: str = "") -> Report:
        report = Report(0.0)
        rows: list[dict[str, Any]] = [{"step": step, "outcome": outcome, "seconds": 0.1, "detail": "x"}
                                      for step, outcome in steps]
        with redirect_stdout(io.StringIO()):
            selftest.note(report, rows, error)
        return report

    def test_each_step_but_doctor_must_not_fail(self) -> None:
        report = self.note(("doctor", "failed"), ("tool of x inside", "not here"), (selftest.LAST, "passed"))
        self.assertEqual((True, 3), (report.ok, len(report.facts)))
        self.assertFalse(self.note(("give at boot", "failed"), (selftest.LAST, "passed")).ok)

    def test_it_must_reach_its_end(self) -> None:
        self.assertFalse(self.note(("image", "passed")).ok)
        (fact,) = self.note(error="no engine answers").facts
        self.assertEqual((False, "no engine answers"), (fact.holds, fact.found))
