# SPDX-License-Identifier: Apache-2.0
"""Servers that move between two compute hosts, and the networks that go with them."""

import json
import os
import subprocess
import sys

from testtools.content import text_content

from tests import levels
from tests.functional_cloud.base import TIMEOUT, Server, TwoHostsCase, answers
from tools.cloud.configs import HOST
from tools.cloud.layout import CHECKOUT, SECOND


class TwoHostsTest(TwoHostsCase):
    def move(self, server: Server) -> None:
        self.stage.admin.compute.migrate_server(server.id)
        self.settled(server.id, "VERIFY_RESIZE")
        self.assertEqual(HOST + SECOND, self.host_of(server))

    def test_moved_server_keeps_its_address_and_its_neighbours(self) -> None:
        group = self.security_group()
        rule = self.allow(group, "icmp")
        stays, moves = self.boot_on_first(2, group)
        self.move(moves)
        self.tenant.compute.confirm_server_resize(moves.id)
        self.settled(moves.id, "ACTIVE")
        moves.engine = self.stage.cloud.engines[1]
        moves.wait_for_address()
        self.until("it reaches its neighbour on the other host", lambda: moves.reaches(stays.address))
        self.tenant.network.delete_security_group_rule(rule)
        self.until("what is no longer allowed gets to no host", lambda: not moves.reaches(stays.address))
        self.assertEqual([False] * 3, [moves.reaches(stays.address) for _ in range(3)])

    @levels.exhaustive("DeviceMovesTest migrates a server live, with devices")
    def test_live_migration_by_a_restart(self) -> None:
        (server,) = self.boot_on_first(1, self.security_group("icmp"))
        address = server.floating_address()
        server.inside("touch", "/root/kept")
        self.stage.admin.compute.live_migrate_server(server.id, block_migration="auto")
        self.settled(server.id, "ACTIVE")
        self.assertEqual(HOST + SECOND, self.host_of(server))
        self.until("its old host has it no more", lambda: server.container not in self.stage.cloud.engines[0].client(
            "list", "--format", "csv", "--columns", "n").split())
        server.engine = self.stage.cloud.engines[1]
        server.wait_for_address()
        self.until("it answers on its new host", lambda: answers(address))
        self.assertEqual(0, server.inside("test", "-e", "/root/kept").status)
        moves = self.stage.admin.compute.get("/os-migrations", microversion="2.59", params={"instance_uuid": server.id})
        self.assertEqual([("live-migration", "completed")], [
            (move["migration_type"], move["status"]) for move in moves.json()["migrations"]])

    def drain(self) -> tuple[int, dict[str, tuple[str, str]]]:
        """Run examples/drain on the first host; its status, and where each server is or why it stays."""
        done = subprocess.run(
            (sys.executable, str(CHECKOUT / "examples/drain/drain.py"), HOST, "--reason", "new kernel", "--json"),
            env={**os.environ, "OS_CLIENT_CONFIG_FILE": str(self.stage.cloud.layout.clouds_yaml), "OS_CLOUD": "admin"},
            capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=TIMEOUT, check=False)
        self.addDetail("drain", text_content(done.stderr))
        return done.returncode, {one["id"]: (one["to"], one["reason"]) for one in json.loads(done.stdout)}

    def moves(self) -> int:
        return len(list(self.stage.admin.compute.migrations()))

    def test_drained_host_keeps_the_job_that_does_not_agree(self) -> None:
        compute = self.stage.admin.compute
        alone, member = self.boot_on_first(2)
        self.tenant.compute.set_server_metadata(member.id, hpcjob="wave")
        (service,) = compute.services(binary="nova-compute", host=HOST)
        self.addCleanup(compute.enable_service, service.id)  # of a record from before, the SDK would change nothing
        status, found = self.drain()
        second = HOST + SECOND
        self.assertEqual((1, {alone.id, member.id}, (second, "")), (status, found.keys(), found[alone.id]))
        self.assertIn("job wave does not agree to move", found[member.id][1])
        self.settled(alone.id, "ACTIVE")
        self.assertEqual((second, HOST), (self.host_of(alone), self.host_of(member)))
        (service,) = compute.services(binary="nova-compute", host=HOST)
        self.assertEqual(("disabled", "new kernel"), (service.status, service.disabled_reason))
        before = self.moves()
        self.assertEqual((1, {member.id: found[member.id]}, before), (*self.drain(), self.moves()))
        self.tenant.compute.set_server_metadata(member.id, hpcjob_move="yes")
        self.assertEqual((0, {member.id: (second, "")}), self.drain())
        self.settled(member.id, "ACTIVE")

    @levels.exhaustive("a move is shown by the other test, a revert without real networks")
    def test_reverted_server_is_reached_where_it_was(self) -> None:
        (server,) = self.boot_on_first(1, self.security_group("icmp"))
        address = server.floating_address()
        self.until("it answers", lambda: answers(address))
        self.move(server)
        self.until("it answers on its new host", lambda: answers(address))
        self.tenant.compute.revert_server_resize(server.id)
        self.settled(server.id, "ACTIVE")
        self.assertEqual(HOST, self.host_of(server))
        self.until("it answers on its old host", lambda: answers(address))
