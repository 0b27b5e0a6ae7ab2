# SPDX-License-Identifier: Apache-2.0
"""Share the daemon and a small container's spec between the tests on Docker."""

from pathlib import Path
from typing import Any

from containerhost.engines.docker.engine import DockerEngine
from containerhost.engines.docker.privileged import DockerPrivileged
from containerhost.engines.spec import ContainerSpec, Cpu, Memory, RootDisk
from tests.conformance.engine import frame
from tests.conformance.engine.frame import MiB
from tests.functional_docker.dockerd import Daemon, Docker, leftovers
from tests.waiting import await_that


class DockerTestCase(frame.EngineFrame):
    """:ivar own: a daemon of this test's own; None is the one that all tests share"""

    label = "one.id"
    own: Daemon | None = None

    def setUp(self) -> None:
        super().setUp()
        self.docker = self.useFixture(Docker(self.own))
        self.daemon, self.engine = self.docker.daemon, self.docker.engine

    def another(self) -> DockerEngine:
        return self.daemon.engine()

    def spec(self, name: str = "c1", **more: Any) -> ContainerSpec:
        parts: dict[str, Any] = {"image": "polite", "cpu": Cpu(1), "memory": Memory(64 * MiB), "root": RootDisk("any"),
                                 "labels": {self.label: f"of-{name}"}}
        return ContainerSpec(name=name, **(parts | more))

    def printed(self, name: str, text: bytes) -> None:
        await_that(lambda: text in self.engine.console_log(name), f"container {name} prints {text!r}")

    def up(self, name: str = "c1") -> None:
        self.printed(name, b"up")

    def left(self, name: str = "c1") -> list[str]:
        """Return what is left of all containers: none may be there any more."""
        return leftovers(self.docker.daemon)

    def directory(self) -> Path:
        return self.docker.daemon.base


class DockerDeviceCase(frame.DeviceFrame, DockerTestCase):
    privileged = DockerPrivileged
