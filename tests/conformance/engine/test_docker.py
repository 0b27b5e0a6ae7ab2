# SPDX-License-Identifier: Apache-2.0
from containerhost.devices.model import Device, NodeUse
from tests.conformance.engine import suite
from tests.functional_docker.base import DockerDeviceCase


class DockerTest(suite.EngineConformance, DockerDeviceCase):
    last_words = b"asked to end"

    def someones(self, gpu: Device) -> None:
        api = self.daemon.api()
        node = next(node.path for node in gpu.nodes if node.use is NodeUse.OWN)
        api.create_container("polite", name="someone", host_config=api.create_host_config(
            devices=[f"{node}:{node}:rwm"]))
