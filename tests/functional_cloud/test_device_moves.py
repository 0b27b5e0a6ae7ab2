# SPDX-License-Identifier: Apache-2.0
"""Move a server with a GPU and a virtual function while its program writes files: none of them is lost."""

import dataclasses
import json
import time
from collections.abc import Callable
from typing import Any

from openstack.exceptions import BadRequestException
from testtools.content import text_content

from tests import levels
from tests.fakehost.control import FakeHostControl
from tests.functional_cloud import stage
from tests.functional_cloud.base import Server
from tests.functional_cloud.writer import HOSTS, WriterCase

MICROVERSION = "2.80"


@dataclasses.dataclass(frozen=True)
class Moved:
    """:ivar seconds: from the request until nova says that it is done
    :ivar stopped: seconds in which the program wrote nothing
    """

    seconds: float
    stopped: float


class DeviceMovesTest(WriterCase):
    def moved(self, server: Server, request: Callable[[], Any], status: str, to: int) -> Moved:
        """Move the server and check that nothing of it is lost.

        :param to: number of the new host
        """
        before = len(self.sums(server))
        began = time.monotonic()
        request()
        self.settled(server.id, status)
        seconds = time.monotonic() - began
        self.assertEqual(HOSTS[to], self.host_of(server))
        server.engine = self.stage.cloud.engines[to]
        self.until_written(server)
        return Moved(round(seconds, 1), round(self.assert_nothing_lost(server, before), 1))

    def migrate(self, server: Server, to: int) -> Moved:
        compute = self.stage.admin.compute
        moved = self.moved(server, lambda: compute.migrate_server(server.id), "VERIFY_RESIZE", to)
        self.tenant.compute.confirm_server_resize(server.id)
        self.settled(server.id, "ACTIVE")
        return moved

    def migrate_live(self, server: Server, to: int) -> Moved:
        compute = self.stage.admin.compute
        return self.moved(server, lambda: compute.live_migrate_server(server.id, block_migration="auto"), "ACTIVE", to)

    def notices(self, server: Server) -> list[dict[str, Any]]:
        """Return what its program was told before each stop."""
        return [json.loads(line)["announced"] for line in self.read(server, "notices").splitlines()]

    def migrations(self, server: Server) -> list[dict[str, Any]]:
        """Return the live migrations of the server that are in progress."""
        return self.stage.admin.compute.get(f"/servers/{server.id}/migrations", microversion=MICROVERSION
                                            ).json()["migrations"]

    def there_and_back(self, flavor: str) -> Server:
        (server,) = self.boot_on_first(1, flavor=flavor)
        self.start_writer(server)
        found = {"cold": self.migrate(server, 1)}
        if flavor == stage.FLAVOR_OF_DEVICES:
            self.assert_lives_on(server, 1)
        found["live"] = self.migrate_live(server, 0)
        self.addDetail("moves", text_content("\n".join(f"{flavor}: {kind}: {moved}" for kind, moved in found.items())))
        return server

    def test_nothing_is_lost_there_and_back(self) -> None:
        server = self.there_and_back(stage.FLAVOR_OF_DEVICES)
        self.assert_lives_on(server, 0)
        for notice in self.notices(server):
            self.assertTrue(notice["stop"])
            self.assertLess(time.time() - 600, notice["until"])
        self.assertEqual(2, len(self.notices(server)))

    @levels.exhaustive("is there to compare the stop with that of a server with devices")
    def test_server_without_devices_loses_nothing(self) -> None:
        self.there_and_back(stage.FLAVOR)

    @levels.exhaustive("unit/nova/test_livemigration has each refusal")
    def test_aborted_or_refused_server_runs_on_and_the_old_host_serves_others(self) -> None:
        compute = self.stage.admin.compute
        (server,) = self.boot_on_first(1, flavor=stage.FLAVOR_OF_DEVICES)
        self.start_writer(server)
        (self.root(server) / "deaf").touch()
        compute.live_migrate_server(server.id, block_migration="auto")
        running = self.until("it waits for its guest", lambda: [
            one for one in self.migrations(server) if one["status"] == "running" and self.is_announced(server)])
        compute.delete(f"/servers/{server.id}/migrations/{running[0]['id']}", microversion=MICROVERSION)
        self.until("it was aborted", lambda: not self.migrations(server))
        (self.root(server) / "deaf").unlink()
        self.assert_runs_on(server, 0, "cancelled")
        self.migrate(server, 1)
        (other,) = self.boot_on_first(1, flavor=stage.FLAVOR_OF_DEVICES)
        self.assertEqual(dict.fromkeys(self.devices(), other.container), self.held(0))
        self._delete(other.id)
        hardware, gpu = FakeHostControl.from_environment(), self.stage.cloud.offers[0].addresses[0]
        hardware.remove(gpu)
        try:
            compute.migrate_server(server.id)
            self.assert_runs_on(server, 1, "error")
        finally:
            hardware.restore(gpu)
        self.until("nova has freed what it claimed for that move", lambda: self.begins_to_leave(server))
        self.settled(server.id, "ACTIVE")
        server.engine = self.stage.cloud.engines[0]
        self.assert_runs_on(server, 0, "completed")

    def begins_to_leave(self, server: Server) -> bool:
        """Return whether the scheduler finds another host for the server, which then migrates live."""
        try:
            self.stage.admin.compute.live_migrate_server(server.id, block_migration="auto")
        except BadRequestException:
            return False
        return True

    def is_announced(self, server: Server) -> bool:
        """Return whether the guest has been told of its stop."""
        return server.inside("grep", '"stop": true', "/run/containerhost/resources.json").status == 0

    def assert_runs_on(self, server: Server, host: int, status: str) -> None:
        """Check that the last move of the server came to this status, and that it runs on this host."""
        self.until(f"its move is {status}", lambda: self.last_move(server)["status"] == status)
        self.settled(server.id, "ACTIVE")
        self.assertEqual(HOSTS[host], self.host_of(server))
        self.until_written(server)
        self.assert_nothing_lost(server, 1)
        self.assert_lives_on(server, host)

    def last_move(self, server: Server) -> dict[str, Any]:
        found = self.stage.admin.compute.get("/os-migrations", microversion="2.59", params={"instance_uuid": server.id})
        return max(found.json()["migrations"], key=lambda move: move["id"])
