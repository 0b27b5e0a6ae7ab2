# SPDX-License-Identifier: Apache-2.0
from containerhost import errors
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

    def test_beginning_of_an_id_is_no_name(self) -> None:
        self.engine.create(self.spec())
        beginning = self.engine.own("c1")[0][:4]
        for action in (self.engine.container, self.engine.start, self.engine.pid, self.engine.console_log):
            self.assertRaises(errors.EngineNotFound, action, beginning)
        self.engine.delete(beginning)
        self.assertTrue(self.engine.exists("c1"))
        self.engine.create(self.spec(beginning))
        self.engine.delete(beginning)
        self.assertEqual(["c1"], [state.name for state in self.engine.containers()])
