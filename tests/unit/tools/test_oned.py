# SPDX-License-Identifier: Apache-2.0
"""Test what tools/oned makes of OpenNebula's configuration, and of scenarios."""

from pathlib import Path
from typing import Any

import testtools

from tests.functional_one import writer
from tools.oned import front_end, machine, scenarios

MONITORD = """#MANAGER_TIMER  = 15
MONITORING_INTERVAL_HOST = 180

NETWORK = [
    ADDRESS         = "0.0.0.0",
    MONITOR_ADDRESS = "auto",
    PORT    = 4124 ]

PROBES_PERIOD = [
    BEACON_HOST    = 30,
    SYSTEM_HOST    = 600,
    MONITOR_VM     = 30 ]
"""


class ConfigurationTest(testtools.TestCase):
    def test_monitoring_reaches_the_nodes_and_is_frequent(self) -> None:
        text = front_end.adjusted(MONITORD, "10.99.0.1")
        self.assertEqual(2, text.count('ADDRESS = "10.99.0.1",'))
        for words in ("MANAGER_TIMER = 5\n", "MONITORING_INTERVAL_HOST = 30\n", "SYSTEM_HOST = 60,",
                      "MONITOR_VM = 15 ]", "BEACON_HOST    = 30,"):
            self.assertIn(words, text)


class PlaceTest(testtools.TestCase):
    def test_checkout_that_the_machines_would_not_see_is_refused(self) -> None:
        machine.require_seen(Path("/opt/nova-lxd-ext"), Path("/var/tmp/one"))
        for checkout, source in ("/tmp/clone", "/opt/one"), ("/var/tmp/clone", "/opt/one"), ("/opt/clone", "/tmp/one"):
            error = self.assertRaises(machine.MachineFailed, machine.require_seen, Path(checkout), Path(source))
            self.assertIn("is below one of /tmp", str(error))


class FakeStage:
    def __init__(self) -> None:
        self.cleared = 0
        self.there = {"node1: container one-1"}

    def things(self) -> set[str]:
        return set(self.there)

    def left(self, before: set[str]) -> list[str]:
        return sorted(self.there - before)

    def clear(self) -> None:
        self.cleared += 1


class RunTest(testtools.TestCase):
    def test_scenario_that_fails_does_not_end_the_others(self) -> None:
        def fails(stage: object) -> None:
            raise AssertionError("not as it should be")

        def mistaken(stage: object) -> None:
            raise KeyError("FREE_DISK")

        def leaves(stage: FakeStage) -> str:
            stage.there.add("node1: mount one-2")
            return "seen"

        said: list[str] = []
        stage: Any = FakeStage()
        tried: dict[str, Any] = {"one": fails, "wrong": mistaken, "other": leaves, "last": lambda stage: None}
        results = scenarios.run(tried, stage, said.append)
        self.assertEqual([("one", "not as it should be", [], False), ("wrong", "KeyError: 'FREE_DISK'", [], False),
                          ("other", "", ["node1: mount one-2"], False), ("last", "", [], True)],
                         [(result.name, result.problem, result.left, result.passed) for result in results])
        self.assertEqual(2, stage.cleared)
        self.assertIn("not as it should be", said[1])

    def test_names_of_drivers_and_scenarios_choose(self) -> None:
        every = scenarios.known()
        self.assertEqual(set(every), set(scenarios.chosen(())))
        self.assertEqual({"onedock.life_cycle", "lxdone.life_cycle"}, set(scenarios.chosen(("life_cycle",))))
        self.assertTrue(all(name.startswith("lxdone.") for name in scenarios.chosen(("lxdone",))))
        self.assertRaisesRegex(ValueError, "no scenario nothing", scenarios.chosen, ("nothing",))


class WriterTest(testtools.TestCase):
    NOTES = "1 10.0 a\n2 10.1 b\n3 14.5 c\n"
    FILES = "a  1\nb  2\nc  3\n"

    def test_checks_each_file_on_both_disks(self) -> None:
        text = f"{self.NOTES}--\n{self.FILES}d  4\n--\n{self.FILES}d  4\ne  5\n"  # it goes on to write
        noted = writer.checked(text, {writer.Note(4, 14.6, "d")})
        self.assertEqual((3, 4.4), (len(noted), round(writer.longest_pause(noted, 2), 3)))
        for seen, root, disk, problem in (
                ((), "a  1\nc  3\n", self.FILES, r"gaps: \[2, 3\]; files that were noted differ: \[2\]"),
                ((), self.FILES.replace("b", "x"), self.FILES, r"noted differ: \[2\]; files differ on the disk: \[2\]"),
                ((), self.FILES, "a  1\nb  2\n", r"^files differ on the disk: \[3\]"),
                ({writer.Note(4, 14.6, "d")}, self.FILES, self.FILES, r"^files that were noted differ: \[4\]")):
            self.assertRaisesRegex(AssertionError, problem, writer.checked, f"{self.NOTES}--\n{root}--\n{disk}", seen)

    def test_ignores_a_note_that_was_cut(self) -> None:
        self.assertEqual([1, 2], [note.number for note in writer.notes("1 10.0 a\n2 10.1 b\n3 14.5")])
