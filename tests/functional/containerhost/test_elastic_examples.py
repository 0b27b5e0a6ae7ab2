# SPDX-License-Identifier: Apache-2.0
"""The applications of examples/elastic follow their cores and GPUs, those on LXD with all that a live resize does."""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fixtures
import testtools
from testtools import matchers

from containerhost.allocation.refusals import Request
from containerhost.engines.spec import Cpu, Memory
from containerhost.guest import guest, resources
from containerhost.linux.idlist import id_list
from containerhost.linux.sysfs import Host
from tests import levels
from tests.conformance.engine.frame import DeviceFrame
from tests.functional import elasticapps
from tests.unit.containerhost.guest.test_guestnotice import told
from tests.waiting import await_that

# Prints the threads and the generation, which it acknowledges.
POLL = """#include "containerhost_resources.h"
int main(void)
{
    struct containerhost host = {0};
    int threads = containerhost_poll(&host);
    printf("%d %ld\\n", threads, host.generation);
    return containerhost_acknowledge(&host) ? 1 : containerhost_poll(&host);
}
"""
TASKS = 100
STEPS = 1500
TENSORFLOW = elasticapps.EXAMPLES.parents[1] / ".cache/tensorflow"  # of tools/test --exhaustive


def require_two_cpus(test: testtools.TestCase) -> None:
    if len(id_list(Host().text("/sys/devices/system/cpu/online"))) < 2:
        test.skipTest("there is one CPU, so nothing to take")


class OpenMpTest(elasticapps.ElasticCase):
    def test_threads_go_before_the_core_and_come_after_it(self) -> None:
        require_two_cpus(self)
        two = self.spec(cpu=Cpu(2))
        self.begin(two, f"{elasticapps.HELPER} run -- /tools/openmp")
        self.await_line("2 threads")
        for _ in range(2):
            self.assertTrue(self.resize(dataclasses.replace(two, cpu=Cpu(1))))
            self.await_line("1 threads", after=len(self.lines()))
            self.await_threads(1)
            self.assertFalse(self.resize(two))
            self.await_line("2 threads", after=len(self.lines()))
            self.await_threads(2)

    def await_threads(self, number: int) -> None:
        """Wait until the program has this many threads in the kernel: none is left to spin on the other's core."""
        look = "grep -l '^openmp$' /proc/[0-9]*/comm | while read -r comm; do grep ^Threads: ${comm%comm}status; done"
        await_that(lambda: self.inside("c1", "sh", "-c", look)[1].split() == ["Threads:", str(number)], "threads end")


class GpuPoolTest(DeviceFrame, elasticapps.ElasticCase):
    def test_gpu_goes_and_comes_and_each_task_is_done_once(self) -> None:
        grants = self.allocator.acquire([Request(gpu.id) for gpu in self.gpus[:2]], self.consumer())
        kept, lent = (gpu.id for gpu in self.gpus[:2])
        both = self.spec(parts=grants, memory=Memory(256 << 20))
        self.begin(both, f"/usr/bin/python3 /tools/gpu_pool.py {TASKS}")
        for gpu in (kept, lent):
            self.await_line(f"start {gpu}")
        self.assertTrue(self.resize(dataclasses.replace(both, parts=grants[:1])))
        self.assertFalse(self.resize(both))
        await_that(lambda: sum(line.startswith("done") for line in self.lines()) == TASKS, "all tasks are done")
        done = [line.split()[1:] for line in self.lines() if line.startswith("done")]
        self.assertEqual(list(range(TASKS)), sorted(int(task) for task, _ in done))
        of_lent = [line for line in self.lines() if line.endswith(lent)]
        self.assertEqual(["start", "stop", "start"],
                         [line.split()[0] for line in of_lent if not line.startswith("done")])
        stop, start = (index for index, line in enumerate(of_lent) if not line.startswith("done") and index)
        self.assertEqual(stop + 1, start, "it does nothing while it is not there")


class ProcessCase(testtools.TestCase):
    """Processes of this machine, which find in a directory what a host would tell them."""

    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        shutil.copyfile(guest.__file__, self.directory / "containerhost_guest.py")

    def tell(self, document: str) -> str:
        (self.directory / "new").write_text(document)
        (self.directory / "new").replace(self.directory / "resources.json")
        return document

    def acknowledged(self) -> int | None:
        file = self.directory / "ack.json"
        return json.loads(file.read_text())["generation"] if file.exists() else None

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "CONTAINERHOST_DIRECTORY": str(self.directory), "PYTHONPATH": str(self.directory)}

    @contextlib.contextmanager
    def example(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen([sys.executable, str(elasticapps.EXAMPLES / words[0]), *words[1:]], text=True,
                              cwd=self.directory, env=self.environment, stdout=subprocess.PIPE) as process:
            try:
                yield process
            finally:
                process.terminate()


class HeaderTest(ProcessCase):
    def poll(self, generation: str | None = None) -> list[int]:
        done = subprocess.run([self.directory / "poll"], capture_output=True, text=True, check=True, env={
            **self.environment, **({"CONTAINERHOST_GENERATION": generation} if generation else {})})
        return [int(word) for word in done.stdout.split()]

    def test_documents_are_read_as_the_helper_reads_them(self) -> None:
        subprocess.run(["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-I",
                        elasticapps.EXAMPLES, "-x", "c", "-", "-o", self.directory / "poll"], input=POLL, text=True,
                       check=True)
        cpus = len(os.sched_getaffinity(0))
        self.assertEqual(([cpus, -1], None), (self.poll(), self.acknowledged()), "nothing is told")
        self.assertEqual(([cpus, 5], 5), (self.poll("5"), self.acknowledged()), "told by the guest API")
        before = told(told(cpu=Cpu(4096)), cpu=Cpu(4095))
        for document, expected in (
            (before, [cpus, 2]),
            (json.dumps(json.loads(before), indent=2), [cpus, 2]),
            (resources.announcing(before, told(before, cpu=Cpu(1)), 1), [1, 3]),
            ('{"x": "\\"cpus\\": {\\"count\\": 1}", "y": [{"cpus": {"count": 1}}], "generation": 7}', [cpus, 7]),
            ('{"announced": {"cpus": {"cores": [1, 2], "count": 1}, "generation": 8}}', [1, 8]),
        ):
            self.tell(document)
            self.assertEqual((expected, expected[1]), (self.poll(), self.acknowledged()), document)
        for rubbish in ("", "{", "[]", "null", '{"cpus"', '{"cpus": {"count": "1"}}', '"' * 70000, "{" * 70000,
                        '{"cpus": {"count": -3}, "generation": true}', '{"cpus": 1, "x": "\\'):
            self.tell(rubbish)
            self.assertEqual([cpus, 6], self.poll("6"), rubbish)


class BrokenGpuTest(ProcessCase):
    def test_task_of_a_process_that_ends_with_its_gpu_is_done_by_another(self) -> None:
        document = json.loads(told(cpu=Cpu(1)))
        gpus = [{"id": name, "kind": "gpu", "uuid": None} for name in ("first", "second")]
        self.tell(json.dumps(document | {"devices": gpus}))
        with self.example("gpu_pool.py", "12") as pool:
            lines = [pool.stdout.readline() for _ in range(4)]
            children = Path(f"/proc/{pool.pid}/task/{pool.pid}/children").read_text().split()
            os.kill(int(children[0]), signal.SIGKILL)
            lines += pool.stdout.read().splitlines()
            self.assertEqual(0, pool.wait())
        words = [line.split() for line in lines]
        self.assertEqual(list(range(12)), sorted(int(each[1]) for each in words if each[0] == "done"))
        self.assertEqual(1, sum(kind == "lost" for kind, *_ in words))


class NumpyTest(ProcessCase):
    def test_blas_has_the_threads_that_are_told(self) -> None:
        require_two_cpus(self)
        before = self.tell(told(cpu=Cpu(2)))
        with self.example("numpy_training.py") as training:
            self.assertRegex(training.stdout.readline(), "^2 threads")
            self.tell(resources.announcing(before, told(before, cpu=Cpu(1)), 1))
            await_that(lambda: self.acknowledged() == 2, "the shrink is acknowledged")
            training.stdout.readline()  # may be of the second in which they changed
            self.assertRegex(training.stdout.readline(), "^1 threads")


@levels.exhaustive("threads that go and come with a core stay, and a GPU")
class LammpsTest(ProcessCase):
    def test_ranks_change_and_no_step_is_lost_or_repeated(self) -> None:
        require_two_cpus(self)
        before = self.tell(told(cpu=Cpu(1)))
        more = told(before, cpu=Cpu(2))
        with self.example("lammps.py", str(STEPS)) as simulation:
            log = self.directory / "log.lammps"
            await_that(lambda: log.exists() and "Step" in log.read_text(), "steps are done")
            self.tell(more)
            await_that(lambda: self.acknowledged() == 2, "the growth is acknowledged")
            self.tell(resources.announcing(more, told(more, cpu=Cpu(1)), 1))
            await_that(lambda: self.acknowledged() == 3, "the shrink is acknowledged")
            parts = re.findall("([0-9]+) ranks: steps ([0-9]+)-([0-9]+)", simulation.stdout.read())
            self.assertEqual(0, simulation.wait())
        self.assertEqual(["1", "2", "1"], [ranks for ranks, _, _ in parts])
        ends = [0, *(int(last) for _, _, last in parts)]
        self.assertEqual(ends[:-1], [int(first) for _, first, _ in parts])
        self.assertEqual((True, STEPS), (0 < ends[1] < STEPS, ends[-1]))


@levels.exhaustive("TensorFlow is 1 GB; the examples of OpenMP and LAMMPS follow the same documents", share=False)
class TensorFlowTest(ProcessCase):
    @property
    def environment(self) -> dict[str, str]:
        found = super().environment
        return {**found, "PYTHONPATH": f"{found['PYTHONPATH']}:{TENSORFLOW}"}

    def test_threads_of_its_session_follow_and_no_step_is_lost(self) -> None:
        require_two_cpus(self)
        before = self.tell(told(cpu=Cpu(1)))
        more = told(before, cpu=Cpu(2))
        with self.example("tensorflow_training.py", "--steps", "300") as training:
            threads = []
            for number, document in ((1, more), (2, resources.announcing(more, told(more, cpu=Cpu(1)), 1)), (1, None)):
                self.assertThat(training.stdout.readline(), matchers.StartsWith(f"{number} threads"))
                threads.append(len(os.listdir(f"/proc/{training.pid}/task")))
                if document:
                    self.tell(document)
                    asked = json.loads(document)
                    generation = (asked["announced"] or asked)["generation"]
                    await_that(lambda: self.acknowledged() == generation, "it is acknowledged")  # noqa: B023
                    training.stdout.readline()  # of a second that had both
            self.assertEqual((threads[0] + 1, threads[0]), (threads[1], threads[2]))
            *_, last = training.stdout
            self.assertEqual(0, training.wait())
        self.assertIn(" step 300 ", last)
        with self.example("tensorflow_training.py", "--steps", "310") as again:
            self.assertIn(" step 310 ", again.stdout.read())
            self.assertEqual(0, again.wait(), "it goes on from the checkpoint")
