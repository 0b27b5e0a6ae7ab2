# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import fixtures
import testtools

from containerhost.engines import memoryuse
from containerhost.linux.sysfs import Host

V1 = """cache 5000
rss 3000
total_active_file 1000
total_inactive_file 2000
"""


class MemoryUseTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.root = Path(self.useFixture(fixtures.TempDir()).path)

    def write(self, path: str, content: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)

    def needed(self) -> int | None:
        return memoryuse.needed(Host(self.root), 7)

    def test_version_1_counts_the_whole_container(self) -> None:
        self.write("proc/7/cgroup", "4:memory:/lxc.payload.c1/init.scope\n0::/\n")
        self.write("sys/fs/cgroup/memory/lxc.payload.c1/memory.usage_in_bytes", "10000\n")
        self.write("sys/fs/cgroup/memory/lxc.payload.c1/memory.stat", V1)
        self.assertEqual(7000, self.needed())

    def test_version_2(self) -> None:
        self.write("proc/7/cgroup", "0::/lxc.payload.c1/init.scope\n")
        self.write("sys/fs/cgroup/lxc.payload.c1/memory.current", "10000\n")
        self.write("sys/fs/cgroup/lxc.payload.c1/memory.stat", "active_file 400\ninactive_file 600\nanon 9000\n")
        self.assertEqual(9000, self.needed())

    def test_a_host_that_does_not_tell(self) -> None:
        self.assertIsNone(self.needed())
        self.write("proc/7/cgroup", "4:memory:/lxc.payload.c1\n")
        self.assertIsNone(self.needed())
        self.write("sys/fs/cgroup/memory/lxc.payload.c1/memory.usage_in_bytes", "10000\n")
        self.write("sys/fs/cgroup/memory/lxc.payload.c1/memory.stat", "cache 5000\n")
        self.assertIsNone(self.needed())
