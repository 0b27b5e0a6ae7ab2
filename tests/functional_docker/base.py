"""What the tests on Docker share: the daemon, and a small container's spec."""

from typing import Any

import testtools

from containerhost.engines.docker.engine import DockerEngine
from containerhost.spec import ContainerSpec, Cpu, Memory, RootDisk
from tests.functional_docker.dockerd import Docker
from tests.waiting import await_that

MiB = 1 << 20


class DockerTestCase(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.docker = self.useFixture(Docker())
        self.engine: DockerEngine = self.docker.engine

    def spec(self, name: str = "c1", **more: Any) -> ContainerSpec:
        parts: dict[str, Any] = {"image": "polite", "cpu": Cpu(1), "memory": Memory(64 * MiB), "root": RootDisk("any"),
                                 "labels": {"one.id": f"id-of-{name}"}}
        return ContainerSpec(name=name, **(parts | more))

    def running(self, name: str = "c1", **more: Any) -> str:
        self.engine.create(self.spec(name, **more))
        self.engine.start(name)
        return name

    def printed(self, name: str, text: bytes) -> None:
        await_that(lambda: text in self.engine.console_log(name), f"container {name} prints {text!r}")

    def inside(self, name: str, *command: str) -> tuple[int, str]:
        return self.docker.inside(name, *command)
