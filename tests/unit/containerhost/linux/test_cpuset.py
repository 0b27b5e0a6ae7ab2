# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import fixtures
import testtools

from containerhost.errors import HostActionFailed
from containerhost.linux import cpuset
from containerhost.linux.sysfs import Host

PID = 4_000_000  # above the kernel's largest


class CpusetTest(testtools.TestCase):
    """On files in place of control groups, which the kernel of this machine has of one version only."""

    def setUp(self) -> None:
        super().setUp()
        self.root = Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.MonkeyPatch("containerhost.linux.cpuset.ROOT", str(self.root / "cgroup")))
        (self.root / f"proc/{PID}").mkdir(parents=True)

    def group(self, path: str, *files: str) -> Path:
        directory = self.root / "cgroup" / path
        directory.mkdir(parents=True, exist_ok=True)
        for file in files:
            (directory / file).write_text("0-1\n")
        return directory

    def bind(self, groups: str, *nodes: int) -> None:
        (self.root / f"proc/{PID}/cgroup").write_text(groups)
        cpuset.bind_memory(PID, nodes, Host(self.root))

    def test_version_1_moves_memory_and_names_all_nodes_of_the_parent_for_none(self) -> None:
        self.group("cpuset", cpuset.NODES)
        group = self.group("cpuset/lxc.payload.c1", cpuset.NODES, cpuset.MIGRATE)
        self.bind("3:cpuset:/lxc.payload.c1/x/lxc.payload.evil\n2:cpu:/y\n", 1)
        self.assertEqual(("1", "1"), tuple((group / file).read_text()[:1] for file in (cpuset.NODES, cpuset.MIGRATE)))
        self.bind("3:cpuset:/lxc.payload.c1\n")
        self.assertEqual("0-1", (group / cpuset.NODES).read_text().strip())

    def test_version_2_is_reset_by_nothing(self) -> None:
        group = self.group("lxc.payload.c1", cpuset.NODES)
        self.bind("0::/lxc.payload.c1/init.scope\n", 0, 2)
        self.assertEqual("0,2", (group / cpuset.NODES).read_text()[:3])

    def test_a_process_in_no_container_is_refused(self) -> None:
        self.group("system.slice", cpuset.NODES)
        self.assertRaises(HostActionFailed, self.bind, "0::/system.slice\n", 0)
