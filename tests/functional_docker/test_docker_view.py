# SPDX-License-Identifier: Apache-2.0
"""Test what a container on Docker sees of its CPUs and memory while they change."""

from containerhost.engines.docker.config import own_view
from containerhost.engines.spec import ContainerSpec, Mount
from tests.functional import viewcontract
from tests.functional.viewcontract import ViewContract
from tests.functional_docker.base import DockerTestCase


class KernelViewTest(ViewContract, DockerTestCase):
    """Without LXCFS the kernel reports the whole host in /proc and /sys/devices/system/cpu."""

    same = frozenset({"affinity", "nproc", "cgroup", "memory"})
    hosts = frozenset({"sysconf", "cpuinfo", "stat", "online", "present", "possible", "meminfo"})

    def resize(self, spec: ContainerSpec) -> None:
        self.engine.reconfigure(spec.name, spec)


class LxcfsViewTest(KernelViewTest):
    same, hosts = ViewContract.same, ViewContract.hosts

    def setUp(self) -> None:
        self.useFixture(viewcontract.Lxcfs())
        super().setUp()

    def mounts(self) -> tuple[Mount, ...]:
        return own_view(str(viewcontract.LXCFS))
