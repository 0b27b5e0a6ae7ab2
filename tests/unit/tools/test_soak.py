# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import fixtures
import testtools

from tools.showcase import soak
from tools.showcase.soak import MIB, Sample


def sizes(memory: int = 0, files: int = 10, pid: int = 7, threads: int = 3) -> soak.Sizes:
    return {"pid": pid, "memory_kib": memory, "files": files, "threads": threads}


class SoakTest(testtools.TestCase):
    def test_a_restart_begins_another_life(self) -> None:
        samples = [Sample(at, {"nova-compute": sizes(pid=pid), "mariadb": sizes()}) for at, pid in enumerate((1, 1, 2))]
        found = soak.lives_of([*samples, Sample(3, {"mariadb": sizes()})])
        self.assertEqual([[0, 1], [2]], [[at for at, _ in life] for life in found["nova-compute"]])
        self.assertEqual([[0, 1, 2, 3]], [[at for at, _ in life] for life in found["mariadb"]])

    def test_growth_after_the_warm_up_is_a_leak(self) -> None:
        def found(*memory: int, files: tuple[int, ...] = ()) -> list[str]:
            each = files or (10,) * len(memory)
            return soak.leaks([(at, sizes(kib * MIB, count)) for at, (kib, count) in
                               enumerate(zip(memory, each, strict=True))], {})

        self.assertEqual([], found(*range(0, 300, 10), *(300,) * 60), "it grows at the begin alone")
        self.assertEqual([], found(*(100, 140) * 45), "it goes up and down")
        self.assertEqual(["memory_kib 153600 -> 256000"], found(*(100,) * 30, *(150,) * 20, *(200,) * 20, *(250,) * 20))
        self.assertEqual([], found(*(2000,) * 60, *(2090,) * 30), "little of what it has")
        self.assertEqual(["files 30 -> 70"], found(*(1,) * 90, files=tuple(range(90))))
        self.assertEqual([], found(1), "it has just begun")

    def test_pools_become_full(self) -> None:
        for most, grown in ((80, []), (170, ["threads 70 -> 136"])):
            life = [(at, sizes(threads=20 + (most - 20) * at // 90)) for at in range(90)]
            self.assertEqual(grown, soak.leaks(life, soak.FULL), most)
            self.assertEqual([], soak.leaks(life, soak.FULL_OF["nova-compute"]))

    def test_a_thread_more_keeps_its_memory(self) -> None:
        def found(mib_of_a_thread: int) -> list[str]:
            return soak.leaks([(at, sizes(threads=at, memory=at * mib_of_a_thread * MIB)) for at in range(90)],
                              {"threads": 90})

        self.assertEqual([], found(1))
        self.assertEqual(["memory_kib 61440 -> 143360"], found(2))

    def test_log_files_that_lxd_forgot_are_not_counted(self) -> None:
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        (directory / "fd").mkdir()
        for number, target in enumerate(("/logs/a/lxc.log", "/logs/a/lxc.log.old (deleted)", "socket:[7]")):
            (directory / "fd" / str(number)).symlink_to(target)
        self.assertEqual(1, soak.files_of(directory))
