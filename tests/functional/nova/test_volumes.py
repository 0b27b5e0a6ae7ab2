# SPDX-License-Identifier: Apache-2.0
"""Volumes by nova's API: loop devices of this machine in real containers, connected by os-brick's local connector."""

from tests.functional.nova import base  # isort: skip

import subprocess
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, BinaryIO, ClassVar

import fixtures
from os_brick.initiator.connectors.local import LocalConnector

from containerhost import errors
from containerhost.engines.lxd.engine import LxdEngine
from tests import levels
from tests.functional import storage

MIB = 2**20
TIMEOUT = 120  # half seconds


class VolumeServers(base.LxdServers):
    def setUp(self) -> None:
        super().setUp()
        self.cinder = self.useFixture(storage.Cinder(self))
        self.begun: Counter[tuple[str, str]] = Counter()
        self.faults: list[str | None] = []  # of the last action

    def attach(self, server: Mapping[str, Any], volume: str, result: str = "Success", **request: Any) -> None:
        self.api.post_server_volume(server["id"], {"volumeAttachment": {"volumeId": volume, **request}})
        self.ended(server, "attach_volume", result)

    def detach(self, server: Mapping[str, Any], volume: str, result: str = "Success") -> None:
        self.api.delete_server_volume(server["id"], volume)
        self.ended(server, "detach_volume", result)

    def ended(self, server: Mapping[str, Any], action: str, result: str) -> None:
        self.assertEqual(result, self.outcome(server, action), self.faults)

    def outcome(self, server: Mapping[str, Any], action: str) -> str:
        """Return ``Success`` or ``Error`` once the last of all actions of that name, which begins later, has ended."""
        self.begun[server["id"], action] += 1
        results: list[str] = []

        def check() -> None:
            found = [one for one in self.admin_api.get_instance_actions(server["id"]) if one["action"] == action]
            self.assertEqual(self.begun[server["id"], action], len(found))
            url = f"/servers/{server['id']}/os-instance-actions/{found[0]['request_id']}"
            events = self.admin_api.api_get(url).body["instanceAction"]["events"]
            self.faults = [event["traceback"] for event in events]
            results[:] = [event["result"] for event in events]
            self.assertTrue(results and all(results), results)
        self._wait_for_assert(check, max_retries=TIMEOUT)
        (result,) = results
        return result

    def write(self, server: Mapping[str, Any], text: str, path: str = "/dev/vdb") -> None:
        done = self.inside(server, "sh", "-c", f"printf %s {text} | dd of={path} conv=notrunc,fsync")
        self.assertEqual(0, done.status, done.output)

    def read(self, server: Mapping[str, Any], length: int, path: str = "/dev/vdb") -> str:
        done = self.inside(server, "sh", "-c", f"dd if={path} bs={length} count=1 2>/dev/null")
        self.assertEqual(0, done.status, done.output)
        return done.output

    def nodes(self, server: Mapping[str, Any]) -> list[str]:
        return sorted(self.inside(server, "sh", "-c", "ls -l /dev | grep ^b | sed 's/.* /\\/dev\\//'").output.split())

    def records(self) -> list[str]:
        return [path.name for path in (self.state / "instances").rglob("volumes/*")]

    def assert_free(self, volume: str) -> None:
        """Neither Cinder nor the host thinks that anybody has the volume."""
        self.assertEqual([], self.cinder.attached(volume))
        self.assertNotIn(f"{volume}.json", self.records())

    def gone(self, server: dict[str, Any]) -> None:
        self._delete_server(server)
        self.assert_nothing_left()


class VolumesTest(VolumeServers):
    def test_attached_to_a_running_server_through_restarts_and_detached(self) -> None:
        volume, disk = self.cinder.volume()
        server = self.server()
        self.attach(server, volume)
        self.assertEqual(["/dev/vdb"], self.nodes(server))
        self.assertIn("brw-------", self.inside(server, "ls", "-l", "/dev/vdb").output)
        self.write(server, "kept")
        self.assertEqual(b"kept", disk.read(4))
        self.assertEqual(0o600, next((self.state / "instances").rglob("volumes/*")).stat().st_mode & 0o777)
        self._reboot_server(server, hard=True)
        self.assertEqual("kept", self.read(server, 4))
        self._stop_server(server)
        self._start_server(server)
        self.assertEqual("kept", self.read(server, 4))
        # A bind mount of a tenant would outlive the node.
        self.inside(server, "sh", "-c", "touch /root/mine; mount --bind /dev/vdb /root/mine")
        self.detach(server, volume)
        self.assertEqual([], self.nodes(server))
        self.assertNotEqual(0, self.inside(server, "dd", "if=/root/mine", "of=/dev/null", "count=1").status)
        self.assert_free(volume)
        self.attach(server, volume)
        self.assertEqual("kept", self.read(server, 4))
        self.gone(server)
        self.assert_free(volume)

    @levels.exhaustive("a volume that a running server gets and gives back stays")
    def test_attached_at_boot_and_to_a_stopped_server(self) -> None:
        (first, disk), (second, _) = self.cinder.volume(), self.cinder.volume()
        disk.write(b"first")
        server = self.server(networks="none", block_device_mapping_v2=[
            {"source_type": "image", "destination_type": "local", "boot_index": 0, "uuid": self.image(),
             "delete_on_termination": True},
            {"source_type": "volume", "destination_type": "volume", "boot_index": -1, "uuid": first,
             "device_name": "/dev/sdc"}])
        self.assertEqual("first", self.read(server, 5, "/dev/vdc"))
        self._stop_server(server)
        self.attach(server, second, tag="scratch")
        self.assertEqual([(second, ["scratch"])], self.tags(server))
        self._start_server(server)
        self.assertEqual(["/dev/vdb", "/dev/vdc"], self.nodes(server))
        self._stop_server(server)
        self.detach(server, first)
        self._start_server(server)
        self.assertEqual(["/dev/vdb"], self.nodes(server))
        self.api.post_server_action(server["id"], {"pause": {}})
        self._wait_for_state_change(server, "PAUSED")
        self.detach(server, second)
        self.attach(server, first)
        self.api.post_server_action(server["id"], {"unpause": {}})
        self._wait_for_state_change(server, "ACTIVE")
        self.assertEqual([], self.tags(server))
        self.assertEqual("first", self.read(server, 5))
        self.gone(server)
        for volume in (first, second):
            self.assert_free(volume)

    def tags(self, server: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
        """Volumes and their tags, as the server's metadata has them."""
        told = self.instance(server).device_metadata
        return [(device.serial, device.tags) for device in told.devices] if told else []

    @levels.exhaustive("a volume that a running server gets and gives back stays")
    def test_a_volume_in_use_stays(self) -> None:
        volume, _ = self.cinder.volume()
        server = self.server()
        self.attach(server, volume)
        with self.user_of(server, "/dev/vdb"):
            self.detach(server, volume, "Error")
        self.assertEqual(["/dev/vdb"], self.nodes(server))
        self.write(server, "usable")
        self.assertEqual([server["id"]], self.cinder.attached(volume))
        self.detach(server, volume)
        self.assert_free(volume)
        self.gone(server)

    def test_a_volume_that_another_member_of_the_job_was_sent_stays(self) -> None:
        volume, _ = self.cinder.volume()
        flavor = self.flavor(hpc__shared_memory="4")
        job = str(self.api.post_server_groups({"name": "job", "policy": "soft-affinity"})["id"])
        members = []
        for _ in range(2):
            body = self._build_server(image_uuid=self.image(), flavor_id=flavor, networks="none")
            members.append(self._wait_for_state_change(self.api.post_server(
                {"server": body, "os:scheduler_hints": {"group": job}}), "ACTIVE"))
        self.attach(members[0], volume)
        pids = [self.lxd.engine.pid(self.container(server).name) for server in members]
        with Receiver(pids[1] or 0, f"/proc/{pids[0]}/root/dev/vdb"):
            self.detach(members[0], volume, "Error")
        self.detach(members[0], volume)
        self.assert_free(volume)
        for server in members:
            self._delete_server(server)
        self.assert_nothing_left()

    def user_of(self, server: Mapping[str, Any], path: str) -> "User":
        return User(self.lxd.engine.metrics(self.container(server).name).pid, path)

    def test_extended(self) -> None:
        volume, disk = self.cinder.volume()
        server = self.server()
        self.attach(server, volume)
        disk.grow(2 * storage.GIB)
        self.admin_api.api_post("/os-server-external-events", {"events": [
            {"name": "volume-extended", "server_uuid": server["id"], "tag": volume}]})
        self.ended(server, "extend_volume", "Success")
        seen = self.inside(server, "blockdev", "--getsize64", "/dev/vdb").output
        self.assertEqual(2 * storage.GIB, int(seen))
        self.gone(server)

    @levels.exhaustive("units show it; attachments of a running and of a stopped server remain")
    def test_shared_by_two_servers(self) -> None:
        volume, _ = self.cinder.volume(self.cinder.MULTIATTACH_VOL)
        flavor, image = self.flavor(), self.image()
        first, second = (self.server(flavor, image) for _ in range(2))
        for server in (first, second):
            self.attach(server, volume)
        self.write(first, "shared")
        self.assertEqual("shared", self.read(second, 6))
        self.detach(first, volume)
        self.assertEqual(([], ["/dev/vdb"]), (self.nodes(first), self.nodes(second)))
        self.assertEqual("shared", self.read(second, 6))
        self._delete_server(first)
        self.gone(second)
        self.assert_free(volume)

    def test_swapped_for_a_copy(self) -> None:
        size = 80 * MIB  # more than one piece
        old, new = self.cinder.SWAP_OLD_VOL, self.cinder.SWAP_NEW_VOL  # so that Cinder reports a migration
        (_, disk), (_, copy) = (self.cinder.volume(volume, size) for volume in (old, new))
        disk.write(b"begin")
        disk.write(b"end", size - 3)
        server = self.server()
        self.attach(server, old)
        with self.user_of(server, "/dev/vdb"):
            self.admin_api.put_server_volume(server["id"], old, new)
            self.ended(server, "swap_volume", "Error")
        self.assertEqual(([server["id"]], []), (self.cinder.attached(old), self.cinder.attached(new)))
        self.admin_api.put_server_volume(server["id"], old, new)
        self.ended(server, "swap_volume", "Success")
        self.assertEqual((b"begin", b"end"), (copy.read(5), copy.read(3, size - 3)))
        self.write(server, "after")
        self.assertEqual((b"begin", b"after"), (disk.read(5), copy.read(5)))
        self.assert_free(old)
        self.detach(server, new)
        self.gone(server)
        self.assert_free(new)


class ComingAlongTest(VolumeServers):
    options: ClassVar = {(None, "allow_resize_to_same_host"): True}

    def test_when_the_server_is_rebuilt(self) -> None:
        volume, server = self.having_one()
        self.api.post_server_action(server["id"], {"rebuild": {"imageRef": self.image()}})
        self._wait_for_server_parameter(server, {"status": "ACTIVE", "OS-EXT-STS:task_state": None})
        self.assertEqual("kept", self.read(server, 4))
        self.gone(server)
        self.assert_free(volume)

    @levels.exhaustive("LoadedTest moves a server with a volume")
    def test_when_the_server_changes_size(self) -> None:
        volume, server = self.having_one()
        larger = self.flavor(memory_mb=160)
        for settle in (self.revert, self._confirm_resize):
            self.resize(server, larger)
            self.assertEqual("kept", self.read(server, 4))
            settle(server)
            self.assertEqual("kept", self.read(server, 4))
        self.gone(server)
        self.assert_free(volume)

    def having_one(self) -> tuple[str, dict[str, Any]]:
        """Return a volume that says "kept", and the server that has it."""
        volume, disk = self.cinder.volume()
        disk.write(b"kept")
        server = self.server()
        self.attach(server, volume)
        return volume, server


class User:
    """A process in a container that has a file open."""

    def __init__(self, pid: int, path: str) -> None:
        self._command = ["nsenter", "--target", str(pid), "--all", "sh", "-c",
                         f"exec 3<{path}; echo open; exec sleep 600"]

    def __enter__(self) -> None:
        self._begin(None)

    def _begin(self, stdin: BinaryIO | None) -> None:
        self._process = subprocess.Popen(self._command, stdin=stdin, stdout=subprocess.PIPE,
                                         env={"PATH": "/bin:/sbin:/usr/bin:/usr/sbin"})
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"open\n":
            raise RuntimeError("the volume could not be opened")

    def __exit__(self, *error: object) -> None:
        # nsenter forks to enter the PID namespace: the child must go too.
        subprocess.run(["pkill", "--parent", str(self._process.pid)], check=True)
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()


class Receiver(User):
    """A process in a container that has a file of another container open."""

    def __init__(self, pid: int, path: str) -> None:
        super().__init__(pid, "/dev/null")
        self._path = path

    def __enter__(self) -> None:
        with open(self._path, "rb") as file:
            self._begin(file)


class FaultsTest(VolumeServers):
    options: ClassVar = {("lxd", "volume_timeout"): 5}

    def hanging(self, method: str) -> threading.Event:
        """The backend does not answer until the event is set."""
        back = threading.Event()
        self.addCleanup(back.set)
        original = getattr(LocalConnector, method)

        def hang(*args: Any, **kwargs: Any) -> Any:
            back.wait()
            return original(*args, **kwargs)
        self.useFixture(fixtures.MonkeyPatch(f"os_brick.initiator.connectors.local.LocalConnector.{method}", hang))
        return back

    @levels.exhaustive("units have a backend that is gone and what is refused")
    def test_a_backend_that_is_gone(self) -> None:
        """Attaching and booting end in time with the reason and leave nothing; a server can be deleted all the same."""
        volume, _ = self.cinder.volume()
        server = self.server()
        back = self.hanging("connect_volume")
        self.attach(server, volume, "Error")
        self.assertEqual([], self.nodes(server))
        self.assert_free(volume)
        failed = self.server(networks="none", expected="ERROR", block_device_mapping_v2=self.disks(volume))
        self.assertIn("which timed out, is still running", self.reasons(failed)[0])
        self._delete_server(failed)
        self.assert_free(volume)
        back.set()
        self.attach(server, volume)
        self.hanging("disconnect_volume")
        self.gone(server)

    @levels.exhaustive("units have a backend that is gone and what is refused")
    def test_what_cannot_be_is_refused_before_anything_changes(self) -> None:
        table = {
            "swap": {"flavor": self._create_flavor(vcpu=1, memory_mb=128, disk=1, ephemeral=0, swap=64)},
            "boot from a volume": {"block_device_mapping_v2": [
                {"source_type": "volume", "destination_type": "volume", "boot_index": 0,
                 "uuid": self.cinder.IMAGE_BACKED_VOL}]},
            "encrypted": {"block_device_mapping_v2": self.disks(self.cinder.volume(encrypted=True)[0])},
            "only be read": {"block_device_mapping_v2": self.disks(self.cinder.volume(access_mode="ro")[0])},
        }
        for word, request in table.items():
            with self.subTest(word):
                server = self.server(networks="none", expected="ERROR", **request)
                self.assertIn(word, self.fault(server))
                self._delete_server(server)
                self.assertEqual([], self.records())
        self.assert_nothing_left()

    def disks(self, volume: str) -> list[dict[str, Any]]:
        """An image and a volume beside it."""
        return [{"source_type": "image", "destination_type": "local", "boot_index": 0, "uuid": self.image(),
                 "delete_on_termination": True},
                {"source_type": "volume", "destination_type": "volume", "boot_index": -1, "uuid": volume}]


class EphemeralsTest(base.LxdServers):
    def test_a_directory_of_its_own_that_lives_as_long_as_the_server(self) -> None:
        flavor = self._create_flavor(vcpu=1, memory_mb=128, disk=1, ephemeral=1)
        server = self.server(flavor)
        self.assertEqual(0, self.inside(server, "sh", "-c", "echo mine > /ephemeral0/file").status)
        self._reboot_server(server, hard=True)
        self.assertEqual("mine\n", self.inside(server, "cat", "/ephemeral0/file").output)
        (disk,) = self.lxd.disks.all()
        self.assertEqual((storage.GIB, server["id"]), (disk.size, disk.labels["nova.uuid"]))
        self._delete_server(server)
        self.assertEqual((), self.lxd.disks.all())
        self.assert_nothing_left()

    @levels.exhaustive("a boot that fails is undone in the same way with and without a disk")
    def test_a_boot_that_fails_leaves_no_disk(self) -> None:
        flavor = self._create_flavor(vcpu=1, memory_mb=128, disk=1, ephemeral=1)
        self.useFixture(fixtures.MockPatchObject(LxdEngine, "create", side_effect=errors.StorageFull("no space left")))
        server = self.server(flavor, expected="ERROR")
        self.assertIn("no space left", self.reasons(server)[0])
        self.assertEqual((), self.lxd.disks.all())
        self._delete_server(server)
        self.assert_nothing_left()
