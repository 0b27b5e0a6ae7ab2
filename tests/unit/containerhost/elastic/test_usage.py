# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import fixtures
import testtools

from containerhost.elastic import usage
from containerhost.elastic.usage import Load
from containerhost.linux.sysfs import Host

SECOND = 10**9
GROUP = "lxc.payload.c1"


class LoadTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.load = Load()

    def test_busy_cores_of_the_last_rounds(self) -> None:
        found = [self.load.observe("c", 7, 4, cpu_time * SECOND, now) for now, cpu_time in
                 ((0, 10), (5, 20), (10, 20), (15, 25), (20, 45))]
        self.assertEqual([(), (2.0,), (2.0, 0.0), (2.0, 0.0, 1.0), (0.0, 1.0, 4.0)], found)

    def test_another_size_or_start_begins_anew_and_short_times_do_not_count(self) -> None:
        for pid, cores, cpu_time, now, expected in ((7, 4, 0, 0, ()), (7, 4, 5, 5, (1.0,)), (7, 4, 6, 5.1, (1.0,)),
                                                    (7, 2, 10, 10, ()), (7, 2, 15, 15, (1.0,)), (8, 2, 0, 20, ()),
                                                    (8, 2, 5, 25, (1.0,)), (8, 2, 1, 30, ())):
            self.assertEqual(expected, self.load.observe("c", pid, cores, cpu_time * SECOND, now))
        self.load.keep([])
        self.assertEqual((), self.load.observe("c", 8, 2, 10 * SECOND, 35))


class KernelTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.root = Path(self.useFixture(fixtures.TempDir()).path)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def test_pressure_of_the_whole_container(self) -> None:
        self.assertIsNone(usage.cpu_pressure(Host(self.root), 7))
        for root in ("sys/fs/cgroup", "sys/fs/cgroup/unified"):  # version 2 mounted beside version 1
            self.write("proc/7/cgroup", f"4:memory:/{GROUP}\n0::/{GROUP}/init.scope\n")
            self.assertIsNone(usage.cpu_pressure(Host(self.root), 7))
            self.write(f"{root}/{GROUP}/cpu.pressure", "some avg10=12.50 avg60=3.00 avg300=0.1 total=9\nfull avg10=0\n")
            self.assertEqual(12.5, usage.cpu_pressure(Host(self.root), 7))
            (self.root / root / GROUP / "cpu.pressure").write_text("rubbish\n")

    def test_age(self) -> None:
        self.assertIsNone(usage.age(Host(self.root), 7))
        self.write("proc/uptime", "100.00 5.00\n")
        self.write("proc/7/stat", f"7 (a) b) S {' '.join(['0'] * 18)} 4000 0\n")
        self.assertEqual(60.0, usage.age(Host(self.root), 7))
