# SPDX-License-Identifier: Apache-2.0
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import fixtures
import testtools

from containerhost.errors import EngineTimeout
from containerhost.inventory.topology import CpuTimes
from containerhost.linux.sysfs import Host
from onedriver.errors import BadInput
from onedriver.node import measure
from onedriver.node.pcifilter import PciFilter
from onedriver.node.probes import Sample


class MeasureTest(testtools.TestCase):
    def test_share_of_time_in_use(self) -> None:
        now = measure.totals(CpuTimes(kernel=20, user=40, idle=30, iowait=10))
        self.assertEqual((100, 40), now)
        for before, share in (((0, 0), 0.6), ((50, 20), 0.6), ((100, 40), 0.0), ((90, 40), 1.0), ((500, 100), 0.6)):
            self.assertAlmostEqual(share, measure.share(before, now))

    def test_a_damaged_record_is_none(self) -> None:
        file = Path(self.useFixture(fixtures.TempDir()).path) / "x"
        self.assertEqual((0, 0), measure.last(file))
        for text, found in (("[7, 3]", (7, 3)), ("", (0, 0)), ("{}", (0, 0)), ('"a"', (0, 0)), ("[1]", (0, 0)),
                            ("3", (0, 0))):
            file.write_text(text)
            self.assertEqual(found, measure.last(file))

    def test_a_damaged_record_of_samples_is_none(self) -> None:
        file = Path(self.useFixture(fixtures.TempDir()).path) / "x"
        for text, found in (('{"a": [1, 2, 3.5]}', {"a": Sample(1, 2, 3.5)}), ("", {}), ("[]", {}), ('{"a": 1}', {}),
                            ('{"a": [1]}', {}), ("null", {})):
            file.write_text(text)
            self.assertEqual(found, measure.samples(file))
        file.unlink()
        self.assertEqual({}, measure.samples(file))

    def test_a_damaged_record_of_first_processes_is_none(self) -> None:
        file = Path(self.useFixture(fixtures.TempDir()).path) / "x"
        for text, found in (('{"a": 1}', {"a": 1}), ("", {}), ("[]", {}), ('{"a": null}', {})):
            file.write_text(text)
            self.assertEqual(found, measure.first_processes(file))

    def test_space_of_a_file_system(self) -> None:
        directory = self.useFixture(fixtures.TempDir()).path
        found, (total, used, free) = measure.space(Path(directory), 7), shutil.disk_usage(directory)
        self.assertEqual((7, total), (found.datastore, found.total))
        self.assertAlmostEqual(used, found.used, delta=64 << 20)
        self.assertAlmostEqual(free, found.free, delta=64 << 20)

    def telling(self) -> tuple[measure.Measure, list[str]]:
        """Return an object that notifies containers, and the list of those that it notified."""
        told: list[str] = []

        def tell(notice: object, name: str, faults: object) -> bool:
            told.append(name)
            return True

        self.useFixture(fixtures.MockPatch("containerhost.guest.guestnotice.GuestNotice.tell_faults", tell))
        state = Path(self.useFixture(fixtures.TempDir()).path)
        return measure.Measure("lxdone", None, tuple, state, state, PciFilter(), Host(state), state), told

    def test_containers_that_make_the_host_wait_do_not_keep_a_round(self) -> None:
        found, told = self.telling()
        self.useFixture(fixtures.MockPatchObject(measure.time, "monotonic",
                                                 lambda: len(told) * measure.TELL_TIME / 1.5))
        names = {f"one-{number}": () for number in range(50)}
        with mock.patch.object(measure.random, "shuffle", list.reverse):  # by chance, so that each has its turn
            found._tell_faults(names, dict.fromkeys(names, 7))
        self.assertEqual(["one-49", "one-48"], told)
        found._tell_faults(names, dict.fromkeys(names, 7))
        self.assertEqual(0, len(told) - len(set(told)), "those that know it make way for others")

    def test_a_container_with_nothing_wrong_is_notified_once(self) -> None:
        found, told = self.telling()
        for faults, pid, notified in (([], 7, True), ([], 7, False), (["x"], 7, True), (["x"], 7, True), ([], 7, True),
                                      ([], 7, False), ([], 8, True), ([], 8, False), ([], None, False), ([], 8, True)):
            found._tell_faults({"one-1": faults}, {"one-1": pid})
            self.assertEqual(["one-1"] if notified else [], told, (faults, pid))
            told.clear()

    def test_use_of_disks_is_asked_for_in_turns(self) -> None:
        asked: list[str] = []

        def disks(name: str) -> dict[str, int] | None:
            asked.append(name)
            if name == "one-7":
                raise EngineTimeout("no answer")
            return {"root": len(asked)}
        state = Path(self.useFixture(fixtures.TempDir()).path)
        measured = measure.Measure("lxdone", SimpleNamespace(disks=disks), tuple, state, state, PciFilter(),
                                   Host(state), state)
        names = [f"one-{number}" for number in range(40)]
        first = measured._disks(names)
        self.assertEqual((names, set(names) - {"one-7"}), (asked, first.keys()))
        again: list[str] = []
        for _ in range(measure.DISK_ROUNDS):
            asked.clear()
            self.assertEqual(first.keys() | {"one-40"}, measured._disks([*names, "one-40"]).keys())
            self.assertEqual("one-7", asked[0], "one that is not known comes first")
            self.assertLessEqual(len(asked), 5)
            again += asked
        self.assertEqual({*names, "one-40"}, set(again))
        (state / measure.DISKS).write_text("damaged")
        self.assertEqual(first.keys(), measured._disks(names).keys())
        self.assertEqual({}, measure.Measure("onedock", SimpleNamespace(disks=lambda name: None), tuple, state,
                                             state, PciFilter(), Host(state), state)._disks(names))

    def test_use_of_disks_keeps_no_round_waiting(self) -> None:
        asked: list[str] = []
        self.useFixture(fixtures.MockPatchObject(measure.time, "monotonic", lambda: len(asked) * measure.DISK_TIME / 2))
        state = Path(self.useFixture(fixtures.TempDir()).path)
        engine = SimpleNamespace(disks=lambda name: asked.append(name) or {"root": 1})
        measured = measure.Measure("lxdone", engine, tuple, state, state, PciFilter(), Host(state), state)
        names = [f"one-{number}" for number in range(500)]
        for _ in range(2):
            asked.clear()
            measured._disks(names)
            self.assertLessEqual(len(asked), 3)

    def test_a_probe_that_there_is_not(self) -> None:
        self.assertRaises(BadInput, measure.probe, "host/../x", self.fail)
