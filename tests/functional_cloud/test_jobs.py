# SPDX-License-Identifier: Apache-2.0
"""A job of hpcjob on two compute hosts, of which a member is replaced."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fixtures

from tests.functional_cloud import stage
from tests.functional_cloud.base import TIMEOUT, CloudTest, Server
from tools.cloud import networking
from tools.cloud.configs import HOST
from tools.cloud.identity import TENANT
from tools.cloud.layout import CHECKOUT

JOB = f"""
name: swap
members: 2
groups: 2
openstack: {{image: {stage.IMAGE}, flavor: {stage.FLAVOR}, network: {networking.FIXED}}}
"""


class ReplaceTest(CloudTest):
    def setUp(self) -> None:
        super().setUp()
        stage.let_second_host_have_servers(self.stage.admin, True)
        self.addCleanup(stage.let_second_host_have_servers, self.stage.admin, False)
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        (self.directory / "job.yaml").write_text(JOB)

    def hpcjob(self, *words: str, status: int = 0) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "OS_CLOUD": TENANT, "PYTHONPATH": str(CHECKOUT),
                       "XDG_STATE_HOME": str(self.directory),
                       "OS_CLIENT_CONFIG_FILE": str(self.stage.cloud.layout.clouds_yaml)}
        done = subprocess.run([sys.executable, "-m", "hpcjob", *words], env=environment, text=True, capture_output=True,
                              timeout=TIMEOUT, check=False)
        self.assertEqual(status, done.returncode, done.stderr)
        return done

    def server(self, name: str) -> Any:
        """The administrator's record of a server, with its host and user data."""
        (found,) = self.stage.admin.compute.servers(all_projects=True, name=f"^{name}$")
        return self.stage.admin.compute.get_server(found.id)

    def test_member_is_replaced_on_another_host_with_its_address_and_files(self) -> None:
        told = json.loads(self.hpcjob("start", "openstack", str(self.directory / "job.yaml"), "--json").stdout)
        ident, member = told["id"], told["members"][1]
        self.addCleanup(self.hpcjob, "delete", "openstack", ident)
        before = self.server(member["name"])
        self.assertNotEqual(self.server(told["members"][0]["name"]).compute_host, before.compute_host)
        replace = ("replace", "openstack", ident, "1", "--json")
        self.assertIn("runs", self.hpcjob(*replace, status=3).stderr)
        self.assertEqual(before.id, self.server(member["name"]).id)

        new = json.loads(self.hpcjob(*replace, "--force").stdout)["member"]
        after = self.server(member["name"])
        self.assertEqual(member | {"host": new["host"]}, new)
        self.assertNotEqual((before.id, before.compute_host), (after.id, after.compute_host))
        self.assertEqual(before.user_data, after.user_data)
        server = Server(self, after.id)
        server.engine = self.stage.cloud.engines[int(after.compute_host != HOST)]
        self.assertEqual(member["address"], server.address)
        server.wait_for_address()

        self.tenant.compute.delete_server(after.id)
        self.until("the member is gone", lambda: self.tenant.compute.find_server(after.id, ignore_missing=True) is None)
        again = json.loads(self.hpcjob(*replace).stdout)["member"]
        self.assertEqual(member["address"], again["address"])
        self.assertEqual(before.compute_host, self.server(member["name"]).compute_host)
