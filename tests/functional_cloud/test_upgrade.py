# SPDX-License-Identifier: Apache-2.0
"""Upgrade and downgrade nova-compute under a server with a GPU and a virtual function, and move it between releases."""

import dataclasses
import datetime
from pathlib import Path

from tests import levels
from tests.commands import ROOT
from tests.earlier import earlier_code
from tests.functional_cloud import stage
from tests.functional_cloud.base import Server
from tests.functional_cloud.writer import WriterCase
from tools.cloud import services
from tools.cloud.configs import HOST


class UpgradeTest(WriterCase):
    def run_from(self, code: Path) -> None:
        """Restart the first host's nova-compute with the packages in this directory, and wait until it reports."""
        daemons, daemon = self.stage.cloud.daemons, services.compute_daemon(self.stage.cloud.layout)
        daemons.stop([daemon.name])
        before = datetime.datetime.now(datetime.UTC).replace(tzinfo=None).isoformat()
        daemons.start(dataclasses.replace(daemon, environment={"PYTHONPATH": str(code)}))

        def reports() -> bool:
            daemons.check()
            (service,) = self.stage.admin.compute.services(binary="nova-compute", host=HOST)
            return service.state == "up" and service.updated_at > before

        self.until("the other release reports", reports)

    def first_process(self, server: Server) -> str:
        return server.engine.client("list", "--format", "csv", "--columns", "p", server.container).strip()

    def assert_goes_on(self, server: Server, host: int = 0) -> None:
        self.until_written(server)
        self.assert_nothing_lost(server, 1)
        self.assert_lives_on(server, host)

    def migrate(self, server: Server, to: int) -> None:
        """Migrate it, and check it on the new host, whose nova-compute has always this release."""
        self.stage.admin.compute.migrate_server(server.id)
        self.settled(server.id, "VERIFY_RESIZE")
        server.engine = self.stage.cloud.engines[to]
        self.until_written(server)
        self.stage.tenant.compute.confirm_server_resize(server.id)
        self.settled(server.id, "ACTIVE")
        self.assert_goes_on(server, to)

    @levels.exhaustive("tests of records of other releases (tests/unit) stay")
    def test_server_of_one_release_goes_on_with_another(self) -> None:
        earlier, compute = earlier_code(self), self.stage.tenant.compute
        self.addCleanup(self.run_from, ROOT)
        for first, second in ((earlier, ROOT), (ROOT, earlier)):
            self.run_from(first)
            (server,) = self.boot_on_first(1, flavor=stage.FLAVOR_OF_DEVICES)
            self.start_writer(server)
            before = self.first_process(server)
            self.run_from(second)
            self.assert_goes_on(server)
            self.assertEqual(before, self.first_process(server))
            compute.reboot_server(server.id, "HARD")
            self.settled(server.id, "ACTIVE")
            self.assert_goes_on(server)
            compute.stop_server(server.id)
            self.settled(server.id, "SHUTOFF")
            self.run_from(first)
            compute.start_server(server.id)
            self.settled(server.id, "ACTIVE")
            self.assert_goes_on(server)
            self.migrate(server, 1)
            self.migrate(server, 0)
            self._delete(server.id)
            self.assertEqual({}, self.held(0))
