# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import fixtures
import testtools

from containerhost.reports import doctor
from containerhost.sysfs import Host


class UnlimitedTest(testtools.TestCase):
    def test_kernel_without_limit_of_processes(self) -> None:
        root = Path(self.useFixture(fixtures.TempDir()).path)
        self.assertIn("CONFIG_CGROUP_PIDS", " ".join(doctor.unlimited(Host(root))))
        for version in ("", "unified/"):
            file = root / f"sys/fs/cgroup/{version}cgroup.controllers"
            file.parent.mkdir(parents=True)
            file.write_text("cpu memory pids\n")
            self.assertEqual((), doctor.unlimited(Host(root)))
            file.unlink()
            file.parent.rmdir()
        (root / "sys/fs/cgroup/pids").mkdir(parents=True)
        self.assertEqual((), doctor.unlimited(Host(root)))
