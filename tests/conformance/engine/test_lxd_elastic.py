# SPDX-License-Identifier: Apache-2.0
"""LXD, and Incus where $LXD_PROGRAM is incusd."""

from pathlib import Path

from containerhost.engines.capabilities import LiveSizes
from containerhost.engines.lxd.client import VersionedInstance
from containerhost.engines.lxd.live import Live
from containerhost.linux import controlgroups
from containerhost.linux.sysfs import Host
from containerhost.privileged import Privileged
from tests import levels
from tests.conformance.engine import elastic, frame
from tests.functional.containerhost.base import LxdTestCase
from tests.nestedgroups import DEPTH, nested

CPUSET = Path("/sys/fs/cgroup/cpuset")


@levels.exhaustive(frame.REPEATED, when=frame.INCUS)
class LxdElasticTest(elastic.ElasticConformance, LxdTestCase):
    def sizes(self) -> LiveSizes[VersionedInstance]:
        return Live(self.engine, Privileged())

    def options(self) -> list[str]:
        return ["--engine", f"lxd={self.daemon.socket}"]

    def cores_of_one(self) -> int:
        return 1

    def test_groups_that_the_guest_made_keep_no_core(self) -> None:
        """Version 1 lets no group have fewer CPUs than one below it."""
        if not CPUSET.is_dir():
            self.skipTest("this host has control groups of version 2")
        service = self.service()
        self.member("c1")
        self.rounds_until(service, "c1", 2)
        pid = self.engine.pid("c1") or 0
        group = CPUSET / controlgroups.of(pid, Host())["cpuset"].lstrip("/")
        process = nested(pid, str(group), DEPTH, "cpuset.cpus", "cpuset.mems")
        self.assertEqual((b"", None), process.communicate())
        self.assertEqual(0, process.returncode)
        self.member("c2")
        self.rounds_until(service, "c2", 1)
        self.assertEqual(1, len(self.cores("c1")))
        self.assertEqual((0, "1\n"), self.inside("c1", "nproc"))
        self.engine.delete("c2")
        self.rounds_until(service, "c1", 2)
