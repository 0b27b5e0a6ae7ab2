# SPDX-License-Identifier: Apache-2.0
"""Where bench/hpc.py runs MPI jobs: on the host, or in a container of LXD or Docker.

All places run the same programs: containers see the host's /usr and the compiled program, read-only. Each place has a
control group of its own with the kernel's usual weight, the host's processes too, so that a busy machine gives all of
them the same share.
"""

import contextlib
import dataclasses
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from containerhost.engines.spec import ContainerSpec, Cpu, Memory, Mount, RootDisk
from containerhost.linux.idlist import id_list
from containerhost.linux.sysfs import Host
from tests.functional import lxd
from tests.functional_docker import dockerd

TIMEOUT = 600  # s
SIZE = 2 << 30  # bytes of memory
LIBRARIES = ("usr", "lib", "lib64", "etc/alternatives", "etc/openmpi")
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "OPENBLAS_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
               "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
# The emulated host's /sys describes processors that are not there, and MPI binds ranks by it.
REAL_SYS = ("unshare", "--mount", "sh", "-c", 'mount -t sysfs sysfs /sys && exec "$@"', "sh")


def cores() -> frozenset[int]:
    return frozenset(os.sched_getaffinity(0))


def affinities() -> dict[str, Cpu]:
    """Return the CPU limits of each affinity for a container of all cores: what the affinity map gives it."""
    everything, nodes = cores(), id_list(Host().fields("/proc/self/status")["Mems_allowed_list"])
    return {"any": Cpu(len(everything)), "cpu": Cpu(len(everything), everything),
            "cpumem": Cpu(len(everything), everything, nodes)}


def mounts(programs: Path) -> tuple[Mount, ...]:
    present = [name for name in LIBRARIES if Path("/", name).exists()]
    return (*(Mount(name.replace("/", "-"), os.path.realpath(f"/{name}"), f"/{name}") for name in present),
            Mount("programs", str(programs), "/programs"))


@dataclasses.dataclass(frozen=True)
class OnHost:
    """:ivar group: the control groups of its processes, one for each hierarchy"""

    name: str
    programs: Path
    groups: tuple[Path, ...]

    def run(self, command: Sequence[str]) -> str:
        def join() -> None:
            for group in self.groups:
                (group / "cgroup.procs").write_text("0")

        words = [*REAL_SYS, *(word.replace("/programs", str(self.programs)) for word in command)]
        return subprocess.run(words, preexec_fn=join, env=ENVIRONMENT, capture_output=True, text=True,
                              timeout=TIMEOUT, check=True).stdout


@dataclasses.dataclass(frozen=True)
class InContainer:
    name: str
    engine: Any
    container: str

    def run(self, command: Sequence[str]) -> str:
        variables = [f"{key}={value}" for key, value in ENVIRONMENT.items()]
        done = self.engine.execute(self.container, ["/usr/bin/env", "-i", *variables, *command], b"", timeout=TIMEOUT)
        if done.status:
            raise RuntimeError(f"{self.name}: {' '.join(command)} ended with {done.status}: {done.output.decode()}")
        return str(done.stdout.decode())


@contextlib.contextmanager
def host(programs: Path) -> Iterator[OnHost]:
    """Yield the host, with control groups beside those of the containers."""
    roots = [Path("/sys/fs/cgroup", name) for name in ("cpu", "cpuset")]
    groups = [root / f"bench-hpc-{os.getpid()}" for root in roots if root.is_dir()]
    for group in groups:
        group.mkdir()
        for name in ("cpuset.cpus", "cpuset.mems"):
            if (group / name).exists():
                (group / name).write_text((group.parent / name).read_text())
    try:
        yield OnHost("host", programs, tuple(groups))
    finally:
        for group in groups:
            group.rmdir()


class Engines:
    """The real daemons, and the containers made on them."""

    def __init__(self, stack: contextlib.ExitStack, programs: Path) -> None:
        self._lxd = stack.enter_context(lxd.Lxd())
        self._docker = stack.enter_context(dockerd.Docker())
        self._mounts = mounts(programs)
        self.engines: dict[str, Any] = {"LXD": self._lxd.engine, "Docker": self._docker.engine}

    def start(self, engine: str, container: str, cpu: Cpu, more: Mapping[str, Any] | None = None) -> InContainer:
        """Create and start a container.

        :param more: of Docker's host configuration
        """
        image, pool = (self._lxd.imported(), lxd.POOL) if engine == "LXD" else ("polite", "any")
        spec = ContainerSpec(name=container, image=image, cpu=cpu, memory=Memory(SIZE), root=RootDisk(pool),
                             mounts=self._mounts)
        self.engines[engine].create(spec, *((more,) if more else ()))
        self.engines[engine].start(container)
        place = InContainer(engine, self.engines[engine], container)
        self.engines[engine].execute(container, ["mkdir", "-p", "/tmp"], b"", timeout=TIMEOUT)
        inside(self.engines[engine].pid(container), "link", "set", "lo", "up")  # no init of the small image does it
        return place

    def stop(self, engine: str, container: str) -> None:
        self.engines[engine].delete(container)


def inside(pid: int, *words: str) -> None:
    """Run ip with a container's interfaces."""
    subprocess.run(["nsenter", "--target", str(pid), "--net", "ip", *words], check=True)
