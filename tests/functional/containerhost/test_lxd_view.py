# SPDX-License-Identifier: Apache-2.0
"""Test what a container on LXD sees of its CPUs and memory while they change."""

from containerhost.engines.lxd.live import Live
from containerhost.engines.spec import ContainerSpec, Cpu
from containerhost.privileged import Privileged
from tests.functional import viewcontract
from tests.functional.containerhost.base import LxdTestCase

# Done by systemd in larger images; the cgroup namespace shows the container's groups.
MOUNT = """cd /sys/fs/cgroup; mount -t cgroup2 none . && cd . && [ -e cpuset.cpus.effective ] && exit
mount -t tmpfs none . && cd /sys/fs/cgroup && mkdir cpuset memory &&
mount -t cgroup -o cpuset none cpuset && mount -t cgroup -o memory none memory"""


class ViewTest(viewcontract.ViewContract, LxdTestCase):
    def setUp(self) -> None:
        self.useFixture(viewcontract.Lxcfs())
        super().setUp()
        self.live = Live(self.engine, Privileged())

    def up(self, name: str = "c1") -> None:
        self.assertEqual((0, ""), self.inside(name, "sh", "-c", MOUNT))

    def resize(self, spec: ContainerSpec) -> None:
        self.live.adapt(self.live.read(spec.name), spec)

    def test_cpus_that_lxd_chooses(self) -> None:
        self.resized(Cpu(2), Cpu(1))
