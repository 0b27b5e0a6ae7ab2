# SPDX-License-Identifier: Apache-2.0
"""The roles for OpenNebula, on a node with a real dockerd that does not know the runtime yet."""

import json

import testtools

from tests import levels
from tests.commands import script
from tests.functional import ansiblecontract
from tests.functional_docker.dockerd import Daemon
from tests.functional_onedock.node import DockerNode

OTHER = {"log-level": "warn", "runtimes": {"other": {"path": "/usr/bin/runc"}}}


@levels.exhaustive("plays take minutes; the files that the roles write are compared in tests/unit")
class AnsibleTest(ansiblecontract.AnsibleContract, testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.daemon = Daemon(settings=OTHER)
        self.daemon.configuration.chmod(0o600)
        node = self.useFixture(DockerNode(self.daemon))
        reload = node.base / "reload"
        script(reload, f"kill -HUP $(cat {self.daemon.base}/pid)")
        self.prepare(node, opennebula_docker_conf=str(self.daemon.configuration),
                     opennebula_docker_runtime={"path": str(self.daemon.runtime)},
                     opennebula_docker_reload_command=str(reload))
        self.assertNotIn("containerhost", self.runtimes())

    def runtimes(self) -> set[str]:
        return set(self.daemon.api().info()["Runtimes"])

    def configured(self) -> None:
        """Check that Docker runs on with the runtime and what it was configured with."""
        super().configured()
        self.assertLessEqual({"containerhost", "other"}, self.runtimes())
        expected = {**OTHER, "runtimes": {**OTHER["runtimes"], "containerhost": {"path": str(self.daemon.runtime)}}}
        self.assertEqual(expected, json.loads(self.daemon.configuration.read_text()))
        self.assertEqual(0o600, self.daemon.configuration.stat().st_mode & 0o777)

    def test_absent_configuration_is_made_and_a_broken_one_is_left(self) -> None:
        self.daemon.configuration.unlink()
        self.play("--limit", "node1")
        self.assertIn("containerhost", self.runtimes())
        self.daemon.configuration.write_text('{"runtimes": ')
        self.assertRaises(AssertionError, self.play, "--limit", "node1")
        self.assertEqual('{"runtimes": ', self.daemon.configuration.read_text())
