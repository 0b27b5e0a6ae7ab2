# SPDX-License-Identifier: Apache-2.0
"""LXD on a host that has control groups of version 2 alone: what a container's root may make of them."""

import contextlib
import subprocess
from pathlib import Path

from containerhost.linux import controlgroups
from containerhost.linux.sysfs import Host
from tests.functional.containerhost.base import LxdTestCase
from tests.functional_onedock.test_unified import Unified
from tests.nestedgroups import DEPTH, PYTHON, nested

MANY = """
import os, sys
for number in range(2000):
    try:
        os.mkdir(f"{sys.argv[1]}/{number}")
    except OSError as error:
        print(number, error.strerror)
        break
"""


class UnifiedTest(LxdTestCase):
    def setUp(self) -> None:
        self.useFixture(Unified())
        # LXC creates its groups beside this one, where a group with processes could not delegate controllers.
        below = Path("/sys/fs/cgroup/init.scope")
        below.mkdir()
        self.addCleanup(below.rmdir)
        self.move("processes", "init.scope")
        self.addCleanup(self.move, "init.scope", "processes")
        super().setUp()

    @staticmethod
    def move(source: str, target: str) -> None:
        groups = [Path("/sys/fs/cgroup", name, "cgroup.procs") for name in (source, target)]
        for process in groups[0].read_text().split():
            with contextlib.suppress(OSError):  # it has ended
                groups[1].write_text(process)

    def test_groups_of_its_own_and_huge_pages_are_limited(self) -> None:
        self.running("c1")
        pid = self.engine.pid("c1") or 0
        group = Path("/sys/fs/cgroup", controlgroups.of(pid, Host())[""].lstrip("/"))
        self.assertEqual(["0", "0"], [(group / f"hugetlb.{size}.max").read_text().strip() for size in ("2MB", "1GB")])
        nested(pid, str(group), DEPTH).communicate()
        self.assertEqual("0" * 250, next(path.name for path in group.iterdir() if path.name.startswith("000")))
        self.assertEqual("14", (group / "cgroup.max.depth").read_text().strip())
        done = subprocess.run(["nsenter", "--target", str(pid), "--user", "--", PYTHON, "-c", MANY, str(group)],
                              check=True, capture_output=True, text=True)
        self.assertRegex(done.stdout, "^10[0-9][0-9] Resource temporarily unavailable")
        self.engine.delete("c1")
