# SPDX-License-Identifier: Apache-2.0
"""Servers of the elastic story: what a user does with them by nova, what their programs print, and what they have."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from openstack.compute.v2.server import Server

from containerhost.linux.idlist import id_list
from tools.cloud.cloud import Cloud
from tools.cloud.engine import POOL, Engine
from tools.cloud.identity import TENANT
from tools.elasticjobs import jobs
from tools.elasticjobs.jobs import Program
from tools.showcase.report import Report
from tools.showcase.story import wait_for

NANOSECONDS = 10**9
SAMPLE_INTERVAL = 0.5  # s
CREATE_TIMEOUT = 300  # s; the first one waits for the image
STATES = {"pause": "PAUSED", "unpause": "ACTIVE"}


class Worker(NamedTuple):
    """A server, and the program that it is for.

    :ivar container: its name on the host
    """

    program: Program
    server: Server
    container: str

    def __hash__(self) -> int:
        return hash(self.container)  # the SDK's Server has no hash


class Servers:
    """:param image: name of that of :mod:`tools.elasticjobs.image`"""

    def __init__(self, cloud: Cloud, report: Report, image: str) -> None:
        self._engine, self._report, self._image = cloud.engine, report, image
        self._admin, self._compute = cloud.connect("admin").compute, cloud.connect(TENANT).compute
        self._image_id = cloud.connect(TENANT).image.find_image(image, ignore_missing=False).id

    def create(self, name: str, flavor: str, program: Program, expected: str = "ACTIVE") -> Worker:
        """Create a server and wait until it is there.

        :raises RuntimeError: it becomes something else than expected; with nova's reason
        """
        self._report.command(f"openstack server create --flavor {flavor} --image {self._image} --nic none {name}")
        server = self._compute.create_server(
            name=name, networks="none", image_id=self._image_id,
            flavor_id=self._compute.find_flavor(flavor, ignore_missing=False).id)
        found = wait_for(lambda: self._compute.get_server(server.id), lambda now: now.status in ("ACTIVE", "ERROR"),
                         CREATE_TIMEOUT)
        if found.status != expected:
            raise RuntimeError(f"{name} is {found.status} and not {expected}: {(found.fault or {}).get('message')}")
        return Worker(program, found, str(self._admin.get_server(server.id).instance_name))

    def power(self, worker: Worker, action: str) -> None:
        """:param action: pause or unpause"""
        self._report.command(f"openstack server {action} {worker.server.name}")
        getattr(self._compute, f"{action}_server")(worker.server)
        found = wait_for(lambda: self._compute.get_server(worker.server.id).status, lambda now: now == STATES[action])
        if found != STATES[action]:
            raise RuntimeError(f"{worker.server.name} is {found} and not {STATES[action]}")

    def delete(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            self._report.command(f"openstack server delete {worker.server.name}")
            self._compute.delete_server(worker.server)
        wait_for(lambda: {server.id for server in self._compute.servers()},
                 lambda left: not left & {worker.server.id for worker in workers})

    def run(self, worker: Worker, command: str) -> None:
        """Start a program in the place of what runs in the server."""
        self._engine.inside(worker.container, "sh", "-c", "kill -9 -1")  # all but the init of the container
        done = self._engine.inside(worker.container, *jobs.start(command))
        if done.status:
            raise RuntimeError(f"{worker.server.name} does not run {command}: {done.err}")

    def lines(self, worker: Worker) -> list[str]:
        """Return what its program has printed; also while it is paused."""
        output = (self._engine.directory / "storage-pools" / POOL / "containers" / worker.container / "rootfs"
                  / jobs.OUTPUT.lstrip("/"))
        return output.read_text().splitlines() if output.exists() else []

    def await_lines(self, worker: Worker, enough: Callable[[list[str]], bool], what: str, limit: float = 120) -> None:
        """Wait for what a program prints.

        :raises RuntimeError: the program does not print so, or has ended before
        """
        lines = wait_for(lambda: self.lines(worker), lambda lines: enough(lines) or jobs.ended(lines), limit)
        if not enough(lines):
            raise RuntimeError(f"{worker.server.name}: {what} is not printed, but {lines[-5:]}")

    def await_cores(self, worker: Worker, count: int) -> bool:
        found = wait_for(lambda: self._engine.inside(worker.container, "nproc").out, lambda now: now == str(count))
        return self._report.check(worker.server.name, "has so many cores", f"{found} of {count}", found == str(count))

    def cpu(self, worker: Worker) -> float:
        """Return the seconds of CPU time that it has had."""
        state = self._engine.query(f"/1.0/instances/{worker.container}/state")
        return float(state["cpu"]["usage"]) / NANOSECONDS


class Timeline(threading.Thread):
    """Note while the block runs how many cores each server has; none while it is paused.

    :ivar changes: seconds since its begin, and the cores of each program from then on
    """

    def __init__(self, engine: Engine, workers: Sequence[Worker]) -> None:
        super().__init__(daemon=True)
        self._engine, self._names = engine, {worker.container: worker.program.name for worker in workers}
        self._over = threading.Event()
        self._began = time.monotonic()
        self.changes: list[tuple[float, dict[str, int]]] = []

    def __enter__(self) -> "Timeline":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self.join(60)
        self.changes.append((round(time.monotonic() - self._began, 1), {}))

    def run(self) -> None:
        while not self._over.wait(SAMPLE_INTERVAL):
            cores = {self._names[each["name"]]: cores_of(each) for each in
                     self._engine.query("/1.0/instances?recursion=1") if each["name"] in self._names}
            if not self.changes or self.changes[-1][1] != cores:
                self.changes.append((round(time.monotonic() - self._began, 1), cores))


def cores_of(instance: Mapping[str, Any]) -> int:
    """Return how many cores a running instance has; 0 for any other."""
    limit = str(instance["config"].get("limits.cpu", ""))
    if instance["status"] != "Running":
        return 0
    return int(limit) if limit.isdigit() else len(id_list(limit))
