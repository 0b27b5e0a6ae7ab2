# SPDX-License-Identifier: Apache-2.0
"""Test a container's view of its CPUs and memory around a live resize: the same on every engine.

Import the module, not its classes: each would else be a test of the importing module.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import fixtures

from containerhost.engines.spec import ContainerSpec, Cpu, Memory, Mount
from containerhost.guest import resources
from containerhost.guest.guestfiles import GuestFiles
from containerhost.guest.guestnotice import GuestNotice
from containerhost.linux.idlist import id_list
from containerhost.linux.sysfs import Host
from containerhost.privileged import Privileged
from tests.conformance.engine.frame import PYTHON, MiB
from tests.waiting import await_that

LXCFS = Path("/var/lib/lxcfs")
#: Each source of a number of CPUs, or of bytes of memory.
LOOK = """
import glob, json, os, re, subprocess
def text(*paths):
    for path in paths:
        if os.path.exists(path):
            return open(path).read().strip()
def count(path, pattern):
    return len(re.findall(pattern, text(path), re.MULTILINE))
cpus = "/sys/devices/system/cpu/"
print(json.dumps({
    "affinity": sorted(os.sched_getaffinity(0)),
    "nproc": int(subprocess.check_output(["/usr/bin/nproc"])),
    "sysconf": os.sysconf("SC_NPROCESSORS_ONLN"),
    "cpuinfo": count("/proc/cpuinfo", "^processor"),
    "stat": count("/proc/stat", "^cpu[0-9]"),
    **{name: text(cpus + name) for name in ("online", "present", "possible")},
    "cgroup": text("/sys/fs/cgroup/cpuset/cpuset.cpus", "/sys/fs/cgroup/cpuset.cpus.effective"),
    "memory": text("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max"),
    "meminfo": int(re.search("^MemTotal: +([0-9]+) kB", text("/proc/meminfo"), re.MULTILINE)[1]) << 10,
    "told": json.loads(text("/run/containerhost/resources.json")),
}))
"""


class Lxcfs(fixtures.Fixture):
    """LXCFS of the tests' own, in their mount namespace, for containers that start after it."""

    def _setUp(self) -> None:
        LXCFS.mkdir(exist_ok=True)
        pid = Path(self.useFixture(fixtures.TempDir()).path) / "lxcfs.pid"
        process = subprocess.Popen(["lxcfs", "--foreground", f"--pidfile={pid}", str(LXCFS)],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait, 30)
        self.addCleanup(process.terminate)
        await_that((LXCFS / "proc/uptime").exists, "LXCFS shows its files")


class ViewContract:
    """Mixed into a test case of an engine (:class:`~tests.conformance.engine.frame.EngineFrame`).

    :cvar same: sources that show the container's CPUs and memory
    :cvar hosts: sources that show the host's: nothing on this engine changes them
    """

    engine: Any
    same = frozenset({"affinity", "nproc", "sysconf", "cpuinfo", "stat", "online", "cgroup", "memory", "meminfo"})
    hosts = frozenset({"present", "possible"})

    def resize(self, spec: ContainerSpec) -> None:
        raise NotImplementedError

    def setUp(self) -> None:
        super().setUp()
        self.cores = sorted(id_list(Host().text("/sys/devices/system/cpu/online")))[:2]
        if len(self.cores) < 2:
            self.skipTest("there is one CPU, so nothing to take")
        self.notice = GuestNotice(self.files(), timeout=0)
        self.document: str | None = None

    def test_all_sources_tell_the_same_before_during_and_after(self) -> None:
        self.resized(Cpu(2, frozenset(self.cores)), *(Cpu(1, frozenset({core})) for core in self.cores))

    def resized(self, most: Cpu, *fewer: Cpu) -> None:
        """Look at each step of a container that shrinks to ``fewer`` and grows again."""
        large = self.sized(most, 96)
        self.engine.create(large)
        self.engine.start("c1")
        self.up()
        self.tell(large)
        self.assert_sees(large)
        for cpu in fewer:
            small = self.sized(cpu, 64)
            self.announce(small)
            self.assert_sees(large)
            self.resize(small)
            self.tell(small)
            self.assert_sees(small)
            self.resize(large)
            self.tell(large)
            self.assert_sees(large)

    def sized(self, cpu: Cpu, memory: int) -> ContainerSpec:
        return self.spec(cpu=cpu, memory=Memory(memory * MiB), mounts=(*PYTHON, *self.mounts()))

    def mounts(self) -> tuple[Mount, ...]:
        return ()

    def files(self) -> Any:
        """Return the way by which the container is notified."""
        return GuestFiles(self.engine.pid, Privileged())

    def announce(self, coming: ContainerSpec) -> None:
        """Announce and do not wait: the guest is one that listened."""
        self.inside("c1", "sh", "-c", "echo '{\"generation\": 1000}' > /run/containerhost/ack.json")
        self.assertTrue(self.notice.announce("c1", self.document, self.following(coming)))
        announced = self.look()["told"]["announced"]
        self.assertEqual((coming.cpu.count, coming.memory.size), (announced["cpus"]["count"], announced["memory"]))

    def tell(self, spec: ContainerSpec) -> None:
        self.document = self.following(spec)
        self.assertTrue(self.notice.notify("c1", self.document))

    def following(self, spec: ContainerSpec) -> str:
        return resources.following(resources.of(spec), self.document)

    def look(self) -> dict[str, Any]:
        status, output = self.inside("c1", "/usr/bin/python3", "-c", LOOK)
        self.assertEqual(0, status, output)
        return dict(json.loads(output))

    def assert_sees(self, spec: ContainerSpec) -> None:
        found = self.look()
        self.assertEqual((spec.cpu.count, spec.memory.size),
                         (found["told"]["cpus"]["count"], found["told"]["memory"]))
        memory = Host().fields("/proc/meminfo")["MemTotal"].split()[0]  # KiB
        whole = id_list(Host().text("/sys/devices/system/cpu/online")), int(memory) << 10
        for sources, cores, size in ((self.same, spec.cpu.cores or spec.cpu.count, spec.memory.size),
                                     (self.hosts, *whole)):
            for source in sources:
                wanted = size if source in ("memory", "meminfo") else cores
                self.assertEqual(*alike(wanted, found[source], source), f"{source} in {found}")


def alike(wanted: frozenset[int] | int, found: Any, source: str) -> tuple[Any, Any]:
    """Return what is wanted of a source and what it reports, for comparison: CPUs, or which where both say it.

    LXCFS numbers those of ``online`` from 0."""
    if isinstance(found, str):
        found = int(found) if source == "memory" else id_list(found)
    elif isinstance(found, list):
        found = frozenset(found)
    if isinstance(wanted, int) or isinstance(found, int) or source == "online":
        return tuple(value if isinstance(value, int) else len(value) for value in (wanted, found))
    return wanted, found
