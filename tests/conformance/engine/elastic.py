# SPDX-License-Identifier: Apache-2.0
"""Test the elastic service on a real daemon: containers trade the cores of this machine.

A test case of an engine mixes in :class:`ElasticConformance` beside its own base class. Import the module, not its
classes: each would else be a test of the importing module.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import fixtures

from containerhost import errors
from containerhost.elastic.service import ManagedEngine, Options, Service
from containerhost.elastic.state import StateFile
from containerhost.engines import bounds, memoryuse
from containerhost.engines.bounds import Bounds, Range
from containerhost.engines.capabilities import LiveSizes, Size
from containerhost.engines.spec import Cpu, Memory
from containerhost.guest import resources
from containerhost.guest.guestfiles import GuestFiles
from containerhost.guest.guestnotice import GuestNotice
from containerhost.linux.idlist import id_list
from containerhost.linux.sysfs import Host
from tests.conformance.engine import frame
from tests.conformance.engine.frame import TIMEOUT, MiB
from tests.waiting import await_that
from tools.units import confined

# Acknowledges every document, like containerhost-guest.
FOLLOW = """cd /run/containerhost
while usleep 100000; do
    latest=$(grep -o '"generation": [0-9]*' resources.json | tr -dc '0-9\\n' | sort -n | tail -n 1)
    if [ -n "$latest" ] && [ "$latest" != "$known" ]; then
        echo "{\\"generation\\": $latest}" > ack.new && mv ack.new ack.json && known=$latest
    fi
done"""


class FewerCores(Host):
    """This host as it is when the kernel has taken other cores offline."""

    def __init__(self, cores: frozenset[int]) -> None:
        super().__init__()
        self._cores = cores

    def text(self, path: str) -> str | None:
        online = path == "/sys/devices/system/cpu/online"
        return ",".join(map(str, sorted(self._cores))) if online else super().text(path)


class ElasticConformance(frame.EngineFrame):
    def sizes(self) -> LiveSizes[Any]:
        """Return the engine's part that changes sizes."""
        raise NotImplementedError

    def options(self) -> list[str]:
        """Return the options of ``containerhost elastic`` that name the daemon."""
        raise NotImplementedError

    def cores_of_one(self) -> int:
        """Return the number of cores that the daemon lets a container run on that has one core and no choice of it."""
        raise NotImplementedError

    def setUp(self) -> None:
        super().setUp()
        self.pool = frozenset(sorted(id_list(Host().text("/sys/devices/system/cpu/online")))[:2])
        if len(self.pool) < 2:
            self.skipTest("cores are traded on a machine that has two")
        self.home = Path(self.useFixture(fixtures.TempDir()).path)
        self.files = GuestFiles(self.engine.pid, frame.Privileged())

    def member(self, name: str) -> None:
        own = Bounds(Range(1, 2), Range(64 * MiB, 64 * MiB), choice=self.pool)
        self.running(name, cpu=Cpu(2), memory=Memory(64 * MiB),
                     labels={self.label: f"of-{name}", bounds.LABEL: bounds.mark(own)})
        self.up(name)

    def service(self, host: Host | None = None, **options: Any) -> Service:
        managed = ManagedEngine(self.engine, self.sizes(), GuestNotice(self.files, 0))
        return Service({"it": managed}, Options(locks=self.home / "locks", **options), StateFile(self.home / "state"),
                       host)

    def rounds_until(self, service: Service, name: str, count: int) -> None:
        def done() -> bool:
            service.round()
            return len(self.cores(name)) == count

        await_that(done, f"container {name} has {count} cores", pause=0.2)

    def cores(self, name: str) -> frozenset[int]:
        """Return the cores that the container's processes may run on, in the kernel's words."""
        fields = Host().fields(f"/proc/{self.engine.pid(name)}/status")
        return id_list(fields["Cpus_allowed_list"])

    def told(self, name: str) -> dict[str, Any]:
        return json.loads(self.files.read(name, resources.FILE) or b"{}")

    def acknowledge(self, name: str, generation: int) -> None:
        self.files.write(name, resources.ACKNOWLEDGED, json.dumps({"generation": generation}).encode())

    def test_containers_trade_cores_and_those_inside_see_it(self) -> None:
        self.member("c1")
        service = self.service()
        self.rounds_until(service, "c1", 2)
        self.inside("c1", "sh", "-c", f"({FOLLOW}) > /dev/null 2>&1 &")
        await_that(lambda: self.files.read("c1", resources.ACKNOWLEDGED), "the guest listens")
        self.member("c2")
        self.running("other", cpu=Cpu(1))
        await_that(lambda: len(self.cores("other")) == self.cores_of_one(), "the daemon limits a foreign container")
        self.rounds_until(service, "c2", 1)
        self.assertEqual(self.pool, self.cores("c1") | self.cores("c2"))
        self.assertEqual(["1\n", "1\n"], [self.inside(name, "nproc")[1] for name in ("c1", "c2")])
        self.assertEqual(1, service.done["change", "acknowledged"])
        self.assertEqual(sorted(self.cores("c1")), self.told("c1")["cpus"]["cores"])
        self.assertEqual(self.cores_of_one(), len(self.cores("other")))
        self.engine.delete("c2")
        self.rounds_until(service, "c1", 2)
        self.assertEqual((0, "2\n"), self.inside("c1", "nproc"))

    def test_host_loses_cores(self) -> None:
        service = self.service()
        for name in ("c1", "c2"):
            self.member(name)
        self.rounds_until(service, "c2", 1)
        self.assertEqual(self.pool, self.cores("c1") | self.cores("c2"))
        left = frozenset({min(self.pool)})
        later = self.service(FewerCores(left))
        for _ in range(3):
            later.round()
        self.assertEqual([left, left], [self.cores(name) for name in ("c1", "c2")])

    def test_killed_between_announcement_and_reclaim(self) -> None:
        """The program as its unit runs it: with no more rights than these."""
        command = [*confined("containerhost-elastic"), sys.executable, "-c",
                   "from containerhost.operator.cli import main; main()", "elastic", "run", *self.options(), "--state",
                   str(self.home / "state"), "--owners", str(self.home / "locks"), "--notice", "600", "--interval",
                   "0.5"]
        first = self.started(command)
        self.member("c1")
        await_that(lambda: self.cores("c1") == self.pool and self.told("c1"), "it is told what it has")
        self.acknowledge("c1", self.told("c1")["generation"])
        self.member("c2")
        await_that(lambda: self.told("c1").get("announced"), "the announcement")
        self.assertIn("another elastic service runs", subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=TIMEOUT).stderr)
        first.kill()
        first.wait(TIMEOUT)
        announced = self.told("c1")["announced"]
        second = self.started(command)
        await_that(lambda: self.told("c1")["announced"] == announced and len(self.cores("c1")) == 2, "it is as it was")
        self.acknowledge("c1", announced["generation"])
        await_that(lambda: self.cores("c1") | self.cores("c2") == self.pool and not self.cores("c1") & self.cores("c2"),
                   "the second one goes on")
        second.send_signal(signal.SIGTERM)
        self.assertEqual(0, second.wait(TIMEOUT))

    def started(self, command: list[str]) -> "subprocess.Popen[bytes]":
        with (self.home / "log").open("ab") as log:
            found = subprocess.Popen(command, stdout=log, stderr=log)
        self.addCleanup(found.wait, TIMEOUT)
        self.addCleanup(found.kill)
        return found

    def test_resize_changes_the_container_that_was_looked_at_and_no_other(self) -> None:
        sizes, size = self.sizes(), Size(frozenset({min(self.pool)}), 48 * MiB)
        self.member("c1")
        pid, seen = self.engine.pid("c1"), sizes.read("c1")
        sizes.resize(seen, size, {"mark": "1"})
        self.assertEqual(size.cores, self.cores("c1"))
        self.assertEqual({self.label: "of-c1", "mark": "1"}, {
            key: value for key, value in self.engine.container("c1").labels.items() if key != bounds.LABEL})
        self.assertEqual(pid, self.engine.pid("c1"))
        self.assertLess(memoryuse.needed(Host(), pid), 48 * MiB)
        self.inside("c1", "sh", "-c", "x=$(head -c 67108864 /dev/zero | tr '\\0' a)")
        self.assertTrue(40 * MiB < self.engine.metrics("c1").memory_peak <= 48 * MiB)
        self.assertRaises(errors.EngineConflict, sizes.resize, seen, size, {"mark": "2"})
        seen = sizes.read("c1")
        self.engine.stop("c1", timeout=TIMEOUT, force=True)
        self.assertRaises(errors.EngineConflict, sizes.resize, seen, size, {"mark": "2"})
        self.engine.delete("c1")
        self.assertRaises(errors.EngineNotFound, sizes.resize, seen, size, {"mark": "2"})
        self.member("c1")
        self.assertRaises((errors.EngineConflict, errors.EngineNotFound), sizes.resize, seen, size, {"mark": "2"})
        self.assertNotIn("mark", self.engine.container("c1").labels)
        self.assertRaises(errors.UnsupportedOnHost, sizes.resize, sizes.read("c1"),
                          Size(frozenset({4095}), 48 * MiB), {})
