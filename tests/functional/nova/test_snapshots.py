# SPDX-License-Identifier: Apache-2.0
"""Images of servers: what was in the server is in whatever boots from them, and the server does not notice."""

import subprocess
from typing import Any, ClassVar

from nova import context as nova_context
from nova import objects

from containerhost.engines.contract import Status
from containerhost.engines.lxd.exports import PREFIX, Exports
from tests import levels
from tests.functional.nova import base
from tests.functional.nova.glance import Uploads, filtered
from tests.functional.nova.interrupting import Interrupted

LETTER = "kept since before the snapshot"


class SnapshotCase(base.LxdServers):
    def setUp(self) -> None:
        super().setUp()
        self.uploads = Uploads(self.glance)
        self.glance.detail = filtered(self.glance)
        self.addCleanup(self._delete_images)

    def written(self) -> dict[str, Any]:
        """A server with a file in it."""
        server = self.server()
        done = self.inside(server, "sh", "-c", f"echo '{LETTER}' > /root/letter; chown 1000:100 /root/letter")
        self.assertEqual(0, done.status, done.output)
        return server

    def letter(self, server: dict[str, Any]) -> str:
        return self.inside(server, "sh", "-c", "cat /root/letter; stat -c %u:%g /root/letter").output

    def snapshot(self, server: dict[str, Any]) -> str:
        """Ask for a snapshot; the id of its image."""
        answer = self.api.post_server_action(server["id"], {"createImage": {"name": "mine"}})
        return str(answer["image_id"])

    def finished(self, server: dict[str, Any]) -> dict[str, Any]:
        return self._wait_for_server_parameter(server, {"OS-EXT-STS:task_state": None})

    def assert_no_traces(self) -> None:
        """Check that exports left nothing in LXD's store and in its containers."""
        client = self.lxd.engine.client
        self.assertEqual([], [image["filename"] for image in client.images() if image["filename"].startswith(PREFIX)])
        for state in self.lxd.engine.containers():
            self.assertEqual([], client.get("instances", state.name, "snapshots", asked="list snapshots"), state.name)


class SnapshotTest(SnapshotCase):
    options: ClassVar = {("notifications", "notify_on_state_change"): "vm_and_task_state"}

    def test_a_running_server(self) -> None:
        server = self.written()
        pid = self.lxd.engine.metrics(self.container(server).name).pid
        seen: list[tuple[str, int]] = []
        self.uploads.at_piece = lambda image_id: seen.append(self.progress(server))
        image_id = self.snapshot(server)
        self.assertEqual((None, 100), self.progress(self.finished(server)))
        self.assertEqual(pid, self.lxd.engine.metrics(self.container(server).name).pid)
        self.assertEqual(["image_snapshot_pending", "image_snapshot", "image_pending_upload", "image_uploading", None],
                         self.task_states(server)[-5:])
        self.assertEqual({"image_uploading"}, {state for state, _ in seen})
        shown = [percent for _, percent in seen]
        self.assertEqual((sorted(shown), 50), (shown, shown[0]))
        self.assertGreater(shown[-1], 80)
        self.assertLessEqual(self.uploads.largest, 1 << 16)
        self.assert_no_traces()

        image = self.glance.show(None, image_id)
        self.assertEqual(("raw", "bare", "x86_64", server["id"]), (
            image["disk_format"], image["container_format"], image["properties"]["hw_architecture"],
            image["properties"]["instance_uuid"]))
        copy = self.server(image=image_id)
        self.assertEqual(f"{LETTER}\n1000:100\n", self.letter(copy))

        self.inside(server, "rm", "/root/letter")
        self._rebuild_server(server, image_id)
        self.assertEqual(f"{LETTER}\n1000:100\n", self.letter(server))
        for each in (server, copy):
            self._delete_server(each)
        self.assert_nothing_left()

    def progress(self, server: dict[str, Any]) -> tuple[str, int]:
        shown = self.admin_api.get_server(server["id"])
        return shown["OS-EXT-STS:task_state"], shown["progress"]

    def task_states(self, server: dict[str, Any]) -> list[str | None]:
        """Return all task states that the server went through."""
        payloads = [sent["payload"]["nova_object.data"] for sent in self.notifier.versioned_notifications
                    if sent["event_type"] == "instance.update"]
        states = [payload["state_update"]["nova_object.data"]["new_task_state"] for payload in payloads
                  if payload["uuid"] == server["id"]]
        return [state for number, state in enumerate(states) if not number or states[number - 1] != state]

    @levels.exhaustive("a running server and a shelved one remain")
    def test_a_stopped_and_a_paused_server_stay_so(self) -> None:
        server = self.written()
        for action, state, status in (("pause", "PAUSED", Status.FROZEN), ("os-stop", "SHUTOFF", Status.STOPPED)):
            if status is Status.STOPPED:
                self.api.post_server_action(server["id"], {"unpause": None})
                self._wait_for_state_change(server, "ACTIVE")
            self.api.post_server_action(server["id"], {action: None})
            self._wait_for_state_change(server, state)
            image_id = self.snapshot(server)
            self.finished(server)
            self.assertEqual(status, self.container(server).status)
            self.assert_no_traces()
            copy = self.server(image=image_id)
            self.assertEqual(f"{LETTER}\n1000:100\n", self.letter(copy))
            self._delete_server(copy)

    @levels.exhaustive("a running server and a shelved one remain")
    def test_backups_rotate(self) -> None:
        server = self.written()
        for _ in range(2):
            body = {"createBackup": {"name": "nightly", "backup_type": "daily", "rotation": 1}}
            image_id = self.api.post_server_action(server["id"], body)["image_id"]
            self.finished(server)
        self.assertEqual([image_id], [image["id"] for image in self.glance.detail(
            None, filters={"property-backup_type": "daily"})])
        self.assert_no_traces()

    def test_shelving_frees_devices_and_keeps_the_root(self) -> None:
        self.flags(shelved_offload_time=0)
        server = self.server(self.flavor(pci_passthrough__alias=f"{base.GPU_ALIAS}:1"))
        self.inside(server, "sh", "-c", f"echo '{LETTER}' > /root/letter; chown 1000:100 /root/letter")
        self._shelve_server(server)
        self.assert_nothing_left()
        self._unshelve_server(server)
        self.assertEqual(f"{LETTER}\n1000:100\n", self.letter(server))
        self.assertEqual({server["id"]}, set(self.held().values()))
        self._delete_server(server)
        self.assert_nothing_left()


class FaultTest(SnapshotCase, Interrupted):
    def assert_as_before(self, server: dict[str, Any]) -> None:
        self.finished(server)
        self.assertEqual(Status.RUNNING, self.container(server).status)
        self.assertEqual(f"{LETTER}\n1000:100\n", self.letter(server))
        self.assert_no_traces()

    def last_fault(self, server: dict[str, Any]) -> str:
        """Return the fault that nova recorded of a failure that did not harm the server."""
        faults = objects.InstanceFaultList.get_latest_by_instance_uuids(
            nova_context.get_admin_context(), [server["id"]])
        return str(faults[0].message)

    @levels.exhaustive("units show it with an engine in memory")
    def test_the_image_is_deleted_during_the_upload(self) -> None:
        server = self.written()
        self.uploads.at_piece = lambda image_id: self.glance.images.pop(image_id, None)
        self.snapshot(server)
        self.assert_as_before(server)
        self.assertEqual("ACTIVE", self.api.get_server(server["id"])["status"])

    @levels.exhaustive("units fail and kill every step")
    def test_the_daemon_restarts_while_it_packs(self) -> None:
        server = self.written()
        self.restart_at("pack container")
        image_id = self.snapshot(server)
        self.assert_as_before(server)
        self.assertNotIn(image_id, self.glance.images)
        image_id = self.snapshot(server)
        self.assert_as_before(server)
        self.assertEqual("active", self.glance.show(None, image_id)["status"])

    @levels.exhaustive("units show it with an engine in memory")
    def test_the_server_is_deleted_during_the_upload(self) -> None:
        server = self.written()
        self.uploads.at_piece = lambda image_id: self._delete_server(server) if self.there(server) else None
        image_id = self.snapshot(server)
        self._wait_for_assert(lambda: self.assertNotIn(image_id, self.glance.images), max_retries=60)
        self._wait_for_assert(self.assert_no_traces, max_retries=60)
        self.assert_nothing_left()

    def there(self, server: dict[str, Any]) -> bool:
        return server["id"] in self.driver.list_instance_uuids()

    @levels.exhaustive("units show it with an engine in memory")
    def test_an_upload_that_lost_bytes_is_no_image(self) -> None:
        server = self.written()
        self.uploads.lost = 10
        image_id = self.snapshot(server)
        self.assert_as_before(server)
        self.assertNotIn(image_id, self.glance.images)
        self.assertIn("Take the snapshot again", self.last_fault(server))

    @levels.exhaustive("units fail and kill every step")
    def test_no_room_for_the_packed_root(self) -> None:
        server = self.written()
        directory = self.lxd.daemon.directory / "images"
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", directory], check=True)
        try:
            image_id = self.snapshot(server)
            self.finished(server)
            self.assertEqual([], list(directory.iterdir()))
        finally:
            subprocess.run(["umount", "--lazy", directory], check=True)
        self.assert_as_before(server)
        self.assertNotIn(image_id, self.glance.images)
        self.assertIn("is the disk full", self.last_fault(server))

    @levels.exhaustive("units fail and kill every step")
    def test_what_a_killed_nova_compute_left_goes_at_its_next_start(self) -> None:
        server = self.written()
        exports = Exports(self.lxd.engine.client, "gzip", 60)
        image_id = "155d900f-4e14-4e4c-a73d-069cbf4541e6"
        exports.pack(exports.take(self.container(server).name, image_id), image_id, lambda percent: None)
        self.restart_compute_service(self.computes[base.HOST])
        self.assert_as_before(server)
