# SPDX-License-Identifier: Apache-2.0
"""Test what a container on Docker sees of its CPUs and memory while they change."""

from typing import Any

from containerhost.engines.docker.config import own_view
from containerhost.linux.files import atomic_write
from containerhost.spec import ContainerSpec, Mount
from tests.functional import viewcontract
from tests.functional.viewcontract import ViewContract
from tests.functional_docker.base import DockerTestCase


class KernelViewTest(ViewContract, DockerTestCase):
    """Without LXCFS the kernel reports the whole host in /proc and /sys/devices/system/cpu."""

    same = frozenset({"affinity", "nproc", "cgroup", "memory"})
    hosts = frozenset({"sysconf", "cpuinfo", "stat", "online", "present", "possible", "meminfo"})

    def mounts(self) -> tuple[Mount, ...]:
        """Return the directory of a container's notices: the host looks into no overlay."""
        return (Mount("told", str(self.told), "/run/containerhost", read_only=False),)

    def files(self) -> Any:
        self.told = self.directory() / "told"
        self.told.mkdir(exist_ok=True)
        return self

    def write(self, name: str, file: str, content: bytes) -> None:
        atomic_write(self.told / file, content, 0o644)

    def read(self, name: str, file: str) -> bytes | None:
        return (self.told / file).read_bytes()

    def resize(self, spec: ContainerSpec) -> None:
        self.engine.reconfigure(spec.name, spec)


class LxcfsViewTest(KernelViewTest):
    same, hosts = ViewContract.same, ViewContract.hosts

    def setUp(self) -> None:
        self.useFixture(viewcontract.Lxcfs())
        super().setUp()

    def mounts(self) -> tuple[Mount, ...]:
        return (*super().mounts(), *own_view(str(viewcontract.LXCFS)))
