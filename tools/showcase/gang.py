# SPDX-License-Identifier: Apache-2.0
"""Start and delete jobs of ``hpcjob`` in a story, and check that nothing of them is left."""

import os
import subprocess
import sys
import time
from pathlib import Path

from tools.cloud.cloud import Cloud
from tools.cloud.identity import TENANT
from tools.cloud.layout import CHECKOUT
from tools.mpi import job
from tools.showcase import placement
from tools.showcase.report import Report

START_TIMEOUT = 1000  # s, more than the job files have and a removal takes
GONE_TIMEOUT = 60  # s; Placement and Neutron hear of the end of a server a moment later


class GangStory:
    def __init__(self, cloud: Cloud, report: Report) -> None:
        self._cloud, self._report = cloud, report
        self._admin, self._tenant = cloud.connect("admin"), cloud.connect(TENANT)
        self._jobs = cloud.layout.run / "jobs"

    def _start(self, file: Path) -> tuple[str, list[job.Member]]:
        """Start a job, and return its id and its members.

        :raises RuntimeError: it does not start; with the reason
        """
        self._report.command(f"hpcjob start openstack {file.relative_to(CHECKOUT)}")
        with self._report.timed("start, from the command to all members running"):
            done = self._hpcjob("start", "openstack", str(file), "--json")
        if done.returncode:
            raise RuntimeError(f"The job did not start: {done.stderr.strip()}")
        return job.started(done.stdout)

    def _delete(self, ident: str) -> None:
        self._report.command(f"hpcjob delete openstack {ident}")
        with self._report.timed("delete"):
            done = self._hpcjob("delete", "openstack", ident)
        self._report.check(ident, "is deleted", f"status {done.returncode}{job.last_line(done)}", done.returncode == 0)
        self._nothing_left(ident)

    def _nothing_left(self, ident: str) -> None:
        deadline = time.monotonic() + GONE_TIMEOUT
        while (left := self._left(ident)) and time.monotonic() < deadline:
            time.sleep(2)
        self._report.check(ident, "nothing is left: servers, ports, server groups, containers, images, allocations",
                           ", ".join(left) or "nothing", not left)

    def _left(self, ident: str) -> list[str]:
        """Return what there is of a job; no other one and no other server is in this cloud."""
        left = [f"server {server.name}" for server in self._admin.compute.servers(all_projects=True)]
        left += [f"port {port.name}" for port in self._admin.network.ports() if port.description == ident
                 or port.device_owner.startswith("compute:")]
        left += [f"server group {group.name}" for group in self._tenant.compute.server_groups()]
        for engine in self._cloud.engines:
            left += [f"container {path.rpartition('/')[2]}" for path in engine.query("/1.0/instances")]
        left += [f"image {image.name}" for image in self._tenant.image.images(visibility="private")]
        return left + [f"allocation {name}" for name in placement.used(self._admin)]

    def _hpcjob(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(self._command(*words), env=self._environment(), text=True, capture_output=True,
                              timeout=START_TIMEOUT, check=False)

    @staticmethod
    def _command(*words: str) -> list[str]:
        return [sys.executable, "-m", "hpcjob", *words]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "OS_CLOUD": TENANT, "OS_CLIENT_CONFIG_FILE": str(self._cloud.layout.clouds_yaml),
                "PYTHONPATH": str(CHECKOUT)}
