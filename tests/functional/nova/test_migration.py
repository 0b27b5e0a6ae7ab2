# SPDX-License-Identifier: Apache-2.0
"""Cold migration, with and without another size, and evacuation, between two hosts with an LXD each."""

from tests.functional.nova import twohosts  # isort: skip (decides how nova runs)

import errno
import os
import shlex
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import fixtures
from nova import context as nova_context
from nova import objects

from containerhost.engines.contract import Status
from containerhost.engines.lxd.client import LxdClient
from nova_lxd_ext.server.incoming import IncomingMigrations
from tests import levels
from tests.functional import lxd
from tests.functional.nova.base import GPU_ALIAS
from tests.functional.nova.twohosts import FIRST, SECOND
from tests.ports import free_port

MIB = 2**20
GPUS = {FIRST: {"0000:3b:00.0"}, SECOND: {"0000:af:00.0"}}


class MigrationServers(twohosts.TwoHosts):
    def setUp(self) -> None:
        super().setUp()
        self.with_gpu = self.flavor(memory_mb=96, pci_passthrough__alias=f"{GPU_ALIAS}:1")

    def first_server(self, **request: Any) -> dict[str, Any]:
        """On the first host, with a GPU and a file of its tenant."""
        server = self.server(self.with_gpu, host=FIRST, **request)
        self.assertEqual(0, self.run_on(FIRST, server, "sh", "-c", "echo mine > /root/file").status)
        return server

    def assert_lives_on(self, host: str, server: Mapping[str, Any]) -> None:
        """It runs there with its file and a GPU of that host's, and the other host has none of its devices."""
        other = SECOND if host == FIRST else FIRST
        self.assertEqual(host, self.host_of(server))
        self.assertEqual(Status.RUNNING, self.on(host)[server["id"]].status)
        self.assertEqual("mine\n", self.run_on(host, server, "cat", "/root/file").output)
        self.assertEqual(0, self.run_on(host, server, "sh", "-c", "ls /dev/nvidia[0-9]*").status)
        self.assertEqual((GPUS[host], set()), (self.held_on(host), self.held_on(other)))


@levels.exhaustive("LoadedTest moves one, ResizeTest reverts one", tests=("test_with_another_size_and_reverted",))
class MoveTest(MigrationServers):
    @levels.exhaustive("LoadedTest moves and confirms")
    def test_confirmed(self) -> None:
        server = self.first_server()
        self._migrate_server(server)
        self.assert_lives_on(SECOND, server)
        self.assertEqual(Status.STOPPED, self.on(FIRST)[server["id"]].status)
        self._confirm_resize(server)
        self.assert_lives_on(SECOND, server)
        self.assertEqual({}, self.on(FIRST))
        self._reboot_server(server, hard=True)
        self.assert_lives_on(SECOND, server)
        self._delete_server(server)
        self.assert_both_empty()

    def test_with_another_size_and_reverted(self) -> None:
        server = self.first_server()
        self.resize(server, self.flavor(memory_mb=160, disk=2, pci_passthrough__alias=f"{GPU_ALIAS}:1"))
        self.assert_lives_on(SECOND, server)
        self.assertEqual(str(160 * MIB), self.described(SECOND, server)["config"]["limits.memory"])
        self.revert(server)
        self.assert_lives_on(FIRST, server)
        self.assertEqual(str(96 * MIB), self.described(FIRST, server)["config"]["limits.memory"])
        self.assertEqual({}, self.on(SECOND))
        self._delete_server(server)
        self.assert_both_empty()

    def described(self, host: str, server: Mapping[str, Any]) -> dict[str, Any]:
        return self.engine(host).client.instance(self.on(host)[server["id"]].name)[0]

    @levels.exhaustive("a move with another size and back remains; tests/model moves what is off")
    def test_a_stopped_server_stays_stopped_and_ends_in_the_middle(self) -> None:
        server = self.first_server()
        self._stop_server(server)
        self._migrate_server(server)
        self.assertEqual(Status.STOPPED, self.on(SECOND)[server["id"]].status)
        self._delete_server(server)
        self.assert_both_empty()

    @levels.exhaustive("units show that it is refused")
    def test_live_migration_is_refused_with_the_reason(self) -> None:
        server = self.server(self.flavor(memory_mb=96), host=FIRST)
        self.admin_api.post_server_action(server["id"], {"os-migrateLive": {"host": SECOND, "block_migration": "auto"}})
        self._wait_for_migration_status(server, ["error"])
        self.assert_told("cannot move while they run", "live-migration", server)
        self.assertEqual(Status.RUNNING, self.on(FIRST)[server["id"]].status)

    def test_evacuated_and_the_old_host_comes_back(self) -> None:
        server = self.first_server()
        first = self.computes[FIRST]
        first.stop()
        self.admin_api.put_service_force_down(first.service_ref.uuid, True)
        self._evacuate_server(server, expected_host=SECOND)
        self._start_server(server)
        self.assertEqual(Status.RUNNING, self.on(SECOND)[server["id"]].status)
        self.assertEqual(GPUS[SECOND], self.held_on(SECOND))
        self.assertEqual(Status.RUNNING, self.on(FIRST)[server["id"]].status)
        self.restart_compute_service(first)
        self.admin_api.put_service_force_down(first.service_ref.uuid, False)
        self.assertEqual(({}, set()), (self.on(FIRST), self.held_on(FIRST)))
        self._delete_server(server)
        self.assert_both_empty()


class FaultTest(MigrationServers):
    """Whatever goes wrong, the server is as it was, where it was, and nothing of it is anywhere else."""

    options: ClassVar = {**twohosts.TwoHosts.options, ("lxd", "ready_timeout"): 60}

    def setUp(self) -> None:
        super().setUp()
        self.the_server = self.first_server()

    def refused(self, words: str) -> None:
        server = self.the_server
        self.admin_api.post_server_action(server["id"], {"migrate": None})
        self._wait_for_migration_status(server, ["error"])
        self._wait_for_server_parameter(server, {"status": "ACTIVE", "OS-EXT-STS:task_state": None})
        self.assert_told(words, "migrate", server)
        self.assert_lives_on(FIRST, server)
        self.assertEqual({}, self.on(SECOND))
        for compute in self.computes.values():
            compute.manager.update_available_resource(nova_context.get_admin_context())
        devices = objects.PciDeviceList.get_by_instance_uuid(nova_context.get_admin_context(), server["id"])
        self.assertEqual(GPUS[FIRST], {device.address for device in devices})

    def leave_by(self, address: str | None) -> None:
        self.computes[FIRST].manager.driver._backend.moves._address = address

    @levels.exhaustive("units and the engine's own tests of a remote host show it")
    def test_no_address(self) -> None:
        self.leave_by(None)
        self.refused("migration_address")

    @levels.exhaustive("units and the engine's own tests of a remote host show it")
    def test_unreachable(self) -> None:
        self.leave_by(f"https://127.0.0.1:{free_port()}")
        self.refused("connection refused")

    @levels.exhaustive("units have every fault, test_lxd_remote another server in the place of the one")
    def test_untrusted_certificate(self) -> None:
        self.leave_by(twohosts.listening(self.second.engine))
        self.refused("certificate")

    @levels.exhaustive("units have every fault; moves that are reverted and evacuations remain")
    def test_full(self) -> None:
        self.write(64)
        self.useFixture(Filler(Path(self.second.daemon.directory, "storage-pools", "default", "filler")))
        self.refused("create container")

    def write(self, size: int) -> None:
        """:param size: MiB"""
        done = self.run_on(FIRST, self.the_server, "dd", "if=/dev/zero", "of=/root/big", "bs=1M", f"count={size}")
        self.assertEqual(0, done.status, done.output)

    @levels.exhaustive("units have every fault; moves that are reverted and evacuations remain")
    def test_receiver_killed_in_the_middle(self) -> None:
        self.write(64)
        self.when_it_fetches(self.restart)
        self.refused("Migration error")

    def restart(self) -> None:
        self.second.daemon.kill()
        threading.Timer(2, self.second.daemon.start).start()

    def when_it_fetches(self, act: Callable[[], None]) -> None:
        acts = [act]
        original = LxdClient.request

        def request(this: LxdClient, *args: Any, **kwargs: Any) -> Any:
            response = original(this, *args, **kwargs)
            if acts and kwargs["asked"].startswith("create container"):
                acts.pop()()
            return response
        self.useFixture(fixtures.MonkeyPatch("containerhost.engines.lxd.client.LxdClient.request", request))


# Replaces containerhost-guest before a stop, in an image without Python.
CHECKPOINT = """mkdir -p /run/containerhost; cd /run/containerhost; echo '{"generation": 1}' > ack.json
while ! grep -q '"stop": true' resources.json; do sleep 0.1; done
echo 3 > /root/three; echo '{"generation": 2}' > ack.json"""


class CopiedWhileItRunsTest(MigrationServers):
    """Two hosts with Incus: LXD 5.0.2 copies what is stopped."""

    daemon, second_daemon = lxd.Incus, lxd.SecondIncus
    options: ClassVar = {**twohosts.TwoHosts.options, ("lxd", "ready_timeout"): 60}

    def setUp(self) -> None:
        super().setUp()
        self.the_server = self.first_server()
        self.seen: list[tuple[bool, Status]] = []
        self.act: Callable[[], None] = lambda: None
        original = IncomingMigrations.receive_changes

        def receive(this: IncomingMigrations, context: Any, instance: Any, offer: Any, last: bool) -> bool:
            source = SECOND if this._engine.client.settings.endpoint == self.lxd.daemon.socket else FIRST
            self.seen.append((last, self.on(source)[instance.uuid].status))
            self.act()
            return original(this, context, instance, offer, last)
        self.useFixture(fixtures.MonkeyPatch(
            "nova_lxd_ext.server.incoming.IncomingMigrations.receive_changes", receive))
        self.script("dd if=/dev/urandom of=/root/big bs=1M count=32; echo x > /root/gone; sync")

    def script(self, script: str, host: str = FIRST) -> str:
        done = self.run_on(host, self.the_server, "sh", "-c", script)
        self.assertEqual(0, done.status, done.output)
        return done.output

    def snapshots(self, *hosts: str) -> list[str]:
        """Return the snapshots of the hosts' containers."""
        return [url for host in hosts or (FIRST, SECOND) for state in self.engine(host).containers()
                for url in self.engine(host).client.get("instances", state.name, "snapshots", asked="look")]

    def test_server_loses_nothing(self) -> None:
        changes = iter(("rm /root/gone; echo 1 > /root/one", "echo 2 > /root/two"))
        self.act = lambda: self.script(script) if (script := next(changes, None)) else None
        self.useFixture(fixtures.MonkeyPatch("containerhost.engines.copyrounds.SHORT_ROUND", 0))
        self.useFixture(fixtures.MonkeyPatch("containerhost.engines.copyrounds.SHRINKS", 1e9))
        self.flags(migration_rounds=3, group="lxd")
        big = self.script("sha256sum /root/big")
        self.script(f"setsid sh -c {shlex.quote(CHECKPOINT)} > /dev/null 2>&1 < /dev/null &")
        self._migrate_server(self.the_server)
        self.assertEqual([(False, Status.RUNNING)] * 4 + [(True, Status.STOPPED)], self.seen,
                         "one more, after the guest had notice")
        self.assert_lives_on(SECOND, self.the_server)
        self.assertEqual(f"{big}big\none\nthree\ntwo\n",
                         self.script("sha256sum /root/big; cd /root; ls | grep -v file", SECOND))
        self.assertEqual([], self.snapshots(SECOND))
        self._confirm_resize(self.the_server)
        self.assertEqual([], self.snapshots())
        self.seen.clear()
        self.script("rm /run/containerhost/ack.json", SECOND)  # /run of this image is no tmpfs, and no guest listens
        self._migrate_server(self.the_server)
        self.assertEqual([(False, Status.RUNNING)] * 3 + [(True, Status.STOPPED)], self.seen)
        self.assert_lives_on(FIRST, self.the_server)
        self.assertEqual(f"{big}big\none\nthree\ntwo\n",
                         self.script("sha256sum /root/big; cd /root; ls | grep -v file"))
        self.revert(self.the_server)
        self.assert_lives_on(SECOND, self.the_server)
        self.assertEqual([], self.snapshots())
        self._delete_server(self.the_server)
        self.assert_both_empty()

    def test_receiver_killed_before_the_stop(self) -> None:
        self.killed_before_the_stop(self.second.daemon)

    @levels.exhaustive("units show that the snapshot is removed when the daemon is back")
    def test_sender_killed_before_the_stop(self) -> None:
        self.killed_before_the_stop(self.lxd.daemon)

    def killed_before_the_stop(self, daemon: lxd.Daemon) -> None:
        pid = self.engine(FIRST).pid(self.on(FIRST)[self.the_server["id"]].name)
        self.act = lambda: self.restart(daemon)
        self.admin_api.post_server_action(self.the_server["id"], {"migrate": None})
        self._wait_for_migration_status(self.the_server, ["error"])
        self._wait_for_server_parameter(self.the_server, {"status": "ACTIVE", "OS-EXT-STS:task_state": None})
        self.assertEqual([(False, Status.RUNNING)], self.seen)
        self.assert_lives_on(FIRST, self.the_server)
        self.assertEqual(pid, self.engine(FIRST).pid(self.on(FIRST)[self.the_server["id"]].name))
        self.assertEqual(({}, []), (self.on(SECOND), self.snapshots()))

    def restart(self, daemon: lxd.Daemon) -> None:
        """Restart the daemon when the receiver waits for the transfer."""
        original = LxdClient.wait

        def wait(this: LxdClient, *args: Any, **kwargs: Any) -> Any:
            if this.settings.endpoint == self.second.daemon.socket and not self.killed:
                self.killed = True
                daemon.kill()
                threading.Timer(2, daemon.start).start()
            return original(this, *args, **kwargs)
        self.killed = False
        self.useFixture(fixtures.MonkeyPatch("containerhost.engines.lxd.client.LxdClient.wait", wait))


class Filler(fixtures.Fixture):
    """A file that takes what room there is."""

    STEP = 16 * MIB

    def __init__(self, path: Path) -> None:
        self._path = path

    def _setUp(self) -> None:
        self.addCleanup(self._path.unlink, missing_ok=True)
        with self._path.open("wb") as file:
            try:
                while True:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, self.STEP)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
