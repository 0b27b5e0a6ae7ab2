# SPDX-License-Identifier: Apache-2.0
"""A cloud with many compute hosts: real services, and a real nova-compute with our driver for each emulated host."""

import collections
import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pymysql

from tests.fakehost import description, tree
from tools.cloud import configs, identity, image, ini, services
from tools.cloud.cloud import Cloud
from tools.cloud.daemons import Daemon
from tools.cloud.hardware import Offer
from tools.cloud.layout import CHECKOUT, Layout, Shape

FLAVOR = IMAGE = "bench"
GPU = ("10de", "20b0")
TICKS = os.sysconf("SC_CLK_TCK")


class Stage:
    """The cloud with its hosts.

    :ivar admin: logged in as its administrator
    """

    def __init__(self, hosts: int, gpus: int, logs: Path | None) -> None:
        self.hosts, self.gpus, self._logs = hosts, gpus, logs
        self.layout = Layout(CHECKOUT / ".cloudbench")
        self.layout.directory.mkdir(exist_ok=True)
        self._host = host(gpus)
        offer = Offer("gpu", *GPU, "type-PCI", tuple(gpu.address for gpu in self._host.gpus))
        if self.layout.in_use:  # left by a run that was killed
            Cloud(self.layout).down()
        self.cloud = Cloud(self.layout, [offer], say=say, shape=Shape(compute=False))
        self._lxd = self.layout.run / "lxd"

    def __enter__(self) -> "Stage":
        os.environ |= {"PYTHONPATH": str(CHECKOUT), "BENCH_PLACEMENT_LOG": str(self.placement_log),
                       "BENCH_CONDUCTOR_LOG": str(self.conductor_log)}
        services.WSGI["placement"] = "bench.manyhosts.timedplacement:application"
        try:
            self.cloud.up()
            self.admin = self.cloud.connect("admin")
            self._start_hosts()
            self._furnish()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *reason: Any) -> None:
        if self._logs:
            shutil.copytree(self.layout.logs, self._logs, dirs_exist_ok=True)
        self.cloud.down()

    @property
    def placement_log(self) -> Path:
        return self.layout.logs / "placement-requests"

    @property
    def conductor_log(self) -> Path:
        return self.layout.logs / "conductor-requests"

    @property
    def lxd_log(self) -> Path:
        return self._lxd / "requests"

    def _start_hosts(self) -> None:
        self._lxd.mkdir()
        tree.write(self._host, self._lxd / "host")
        (self._lxd / "description").write_text(json.dumps(self.cloud.engine.query("/1.0")))
        daemons, begin = self.cloud.daemons, time.monotonic()
        daemons.bring_up([Daemon("memorylxd", program("memorylxd", self._lxd, self.hosts),
                                 ready=(self._lxd / "ready").exists)])
        files = [self._configure(number) for number in range(1, self.hosts + 1)]
        daemons.start(Daemon("nova-computes", program("computes", self._lxd / "host", *files), ready=lambda: True))
        self.cloud._wait_until(f"{self.hosts} nova-computes are up and in their cell", self._are_up)
        say(f"{self.hosts} hosts took {time.monotonic() - begin:.0f} s")

    def _configure(self, number: int) -> Path:
        """Write nova.conf of a host."""
        parts = self.cloud._parts()
        first = dataclasses.replace(parts.nodes[0], suffix=f"-{number}", owners=self._lxd / f"owners-{number}",
                                    engine_socket=self._lxd / f"{number}.socket")
        content = configs.nova_compute(parts, first)
        content["DEFAULT"] |= {"log_file": str(self.layout.logs / f"nova-compute{first.suffix}.log")}
        path = services.compute_file(self.layout, first.suffix)
        ini.write(path, content)
        (self.layout.run / f"nova{first.suffix}" / "instances").mkdir(parents=True)
        return path

    def _are_up(self) -> bool:
        running = [each for each in self.admin.compute.services(binary="nova-compute") if each.state == "up"]
        return len(running) == len(list(self.admin.compute.hypervisors())) == self.hosts

    def _furnish(self) -> None:
        admin = self.admin
        path = image.build(self.layout.run / "image.tar.gz")
        self.image = admin.create_image(IMAGE, filename=str(path), disk_format="raw", container_format="bare",
                                        visibility="public", wait=True, timeout=60).id
        flavor = admin.compute.create_flavor(name=FLAVOR, vcpus=1, ram=128, disk=1)
        admin.compute.create_flavor_extra_specs(flavor, {"pci_passthrough:alias": "gpu:1"})
        self.flavor = flavor.id
        most = 2 * self.hosts * self.gpus
        for name in ("servers", "class:VCPU", "class:MEMORY_MB", "class:DISK_GB"):
            identity.limit_project(admin, admin.current_project_id, name, most * 128)
        for offer in self.cloud.offers:
            identity.register_limit(admin, f"class:{offer.resource_class}", most)

    @contextlib.contextmanager
    def database(self) -> Iterator[Any]:
        """Connect to nova's database of the cell; yield a cursor that sees what has been committed."""
        with (contextlib.closing(pymysql.connect(unix_socket=str(self.layout.database_socket), user="root",
                                                 database="nova", autocommit=True)) as connection,
              connection.cursor() as cursor):
            yield cursor

    def trackers(self, count: int, gpus: Sequence[int]) -> Any:
        """Let further hosts report their resources; return what trackers.py measured."""
        trees = self._lxd / "trackers"
        trees.mkdir()
        for number in gpus:
            tree.write(host(number), trees / str(number))
        command = program("trackers", services.compute_file(self.layout, "-1"), trees, count, *gpus)
        return json.loads(subprocess.run(command, env=self.cloud.daemons.environment, stdout=subprocess.PIPE,
                                         check=True).stdout)

    def spent(self) -> dict[str, float]:
        """Return each service's processor time until now, in seconds, with that of what it started."""
        names = {pid: name for name, pid in self.cloud.daemons.pids().items()}
        found: dict[str, float] = collections.defaultdict(float)
        for _, fields in processes():
            if (name := names.get(int(fields[3]))) is not None:  # its session
                found[name] += sum(map(int, fields[11:15])) / TICKS  # utime to cstime, proc(5)
        return found

    def memory(self) -> dict[str, int]:
        """Return the MiB of each service; those of one program share pages, which count once (PSS)."""
        names = {pid: name for name, pid in self.cloud.daemons.pids().items()}
        found: dict[str, int] = collections.defaultdict(int)
        for directory, fields in processes():
            if (name := names.get(int(fields[3]))) is not None:
                found[name] += proportional(directory)
        return {name: size >> 10 for name, size in found.items()}


def program(name: str, *arguments: Any) -> tuple[str, ...]:
    """Return the command that runs a program of this package."""
    return sys.executable, "-m", f"bench.manyhosts.{name}", *map(str, arguments)


def host(gpus: int) -> description.HostDescription:
    """Describe a host with some GPUs and as many virtual functions."""
    return description.parse({
        "name": "bench", "nodes": [{"cores": 64, "threads": 2, "memory": "1TiB"}],
        "gpus": [{"address": f"0000:{0x10 + number:02x}:00.0", "vendor": "nvidia", "product": GPU[1],
                  "model": "NVIDIA A100-SXM4-40GB", "numa_node": 0, "memory": "40GiB"} for number in range(gpus)],
        "cards": [{"address": "0000:05:00.0", "kind": "infiniband", "netdev": "ib0", "numa_node": 0, "fabric": "f",
                   "total_vfs": gpus, "enabled_vfs": gpus}]})


def processes() -> Iterator[tuple[Path, list[str]]]:
    """Yield the directory of every process, and the fields of its stat behind the name."""
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            yield directory, (directory / "stat").read_text().rpartition(")")[2].split()


def proportional(directory: Path) -> int:
    """Return a process's share of the memory that it uses, in KiB."""
    with contextlib.suppress(OSError):
        lines = (directory / "smaps_rollup").read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
    return 0


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
