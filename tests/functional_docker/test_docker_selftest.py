# SPDX-License-Identifier: Apache-2.0
from containerhost.engines.docker.images import Images
from containerhost.operator.selftest.steps import NAME
from tests import levels
from tests.functional.selftestcontract import SelfTestContract
from tests.functional_docker.base import DockerDeviceCase


@levels.exhaustive("LXD's has them", tests=("test_killed_test_leaves_nothing",
                                            "test_next_test_removes_what_a_killed_one_left"))
class DockerSelfTest(SelfTestContract, DockerDeviceCase):
    def options(self) -> tuple[str, ...]:
        return ("--engine", f"docker={self.daemon.endpoint}", "--records", str(self.daemon.records))

    def has_image(self) -> bool:
        return Images(self.daemon.client()).has(f"{NAME}:latest")
