# SPDX-License-Identifier: Apache-2.0
"""A restricted project: all that it forbids is named before a container is made, and the command permits it."""

import subprocess

from containerhost.engines.lxd import restrictions
from containerhost.engines.lxd.engine import LxdEngine
from tests.conformance.engine import frame
from tests.functional.containerhost.base import LxdTestCase

PROJECT = "hpc"


class RestrictedProjectTest(frame.DeviceFrame, LxdTestCase):
    def lxc(self, *arguments: str) -> None:
        subprocess.run(["lxc", *arguments], env=self.daemon.environment, check=True, capture_output=True, timeout=60)

    def test_container_runs_after_all_that_is_named_is_permitted(self):
        self.lxc("project", "create", PROJECT, "-c", "restricted=true", "-c", "features.images=false")
        self.addCleanup(self.lxc, "project", "delete", PROJECT)
        engine = LxdEngine(self.daemon.client(project=PROJECT), locks=self.daemon.base)
        words = engine.forbidden()
        for key in restrictions.NEEDS:
            self.assertIn(key, words)
        self.lxc(*words.partition("lxc ")[2].split())
        self.assertIsNone(engine.forbidden())
        grants = self.allocator.acquire(self.requests(0), self.consumer("c1"))
        self.addCleanup(self.allocator.release, self.consumer("c1"))
        engine.create(self.spec("c1", parts=grants))
        self.addCleanup(engine.delete, "c1")
        engine.start("c1")
        engine.verify("c1", grants)
