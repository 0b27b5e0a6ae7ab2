# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import fixtures
import testtools

from containerhost.linux import hugepages
from containerhost.linux.sysfs import Host


class HugePagesTest(testtools.TestCase):
    def test_sizes_where_the_controller_is(self) -> None:
        root = Path(self.useFixture(fixtures.TempDir()).path)
        for size in (64, 2048, 1048576):
            (root / f"sys/kernel/mm/hugepages/hugepages-{size}kB").mkdir(parents=True)
        controllers = root / "sys/fs/cgroup/cgroup.controllers"
        controllers.parent.mkdir(parents=True)
        found = {}
        for case, text in (("none", None), ("without", "cpu memory\n"), ("version 2", "cpu hugetlb memory\n")):
            if text:
                controllers.write_text(text)
            found[case] = sorted(hugepages.limitable(Host(root)))
        controllers.unlink()
        (root / "sys/fs/cgroup/hugetlb").mkdir()
        found["version 1"] = sorted(hugepages.limitable(Host(root)))
        sizes = ["1GB", "2MB", "64KB"]
        self.assertEqual({"none": [], "without": [], "version 2": sizes, "version 1": sizes}, found)
