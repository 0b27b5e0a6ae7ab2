# SPDX-License-Identifier: Apache-2.0
import contextlib
import errno
import json
import os
import signal
from pathlib import Path
from typing import Any

import fixtures
import testtools

from containerhost.engines.fencing import Node, fenced, restore_all
from containerhost.engines.spec import BlockDevice
from containerhost.errors import DeviceInUse, EngineTimeout, HostActionFailed
from containerhost.privileged import Privileged
from tests.unit.containerhost.linux.test_records import of_first_release, of_later_release

DISK = BlockDevice("v", "/dev/null", "/dev/vdb")  # any node will do
NODE = Node("c1", "nova_c1", "block-v")
RESTORED = "restore 7 nova_c1 block-v (1, 3) 600"


class Root(Privileged):
    def __init__(self, users: tuple[str, ...] = ()) -> None:
        self.done: list[str] = []
        self._users = users

    def fence_block(self, server: int, container: str, device: str, number: Any) -> None:
        self.done.append("fence")

    def restore_block(self, server: int, container: str, device: str, pid: int, number: Any, mode: int) -> None:
        self.done.append(f"restore {server} {container} {device} {number} {mode:o}")

    def block_users(self, server: int, container: str, device: str, pids: Any, number: Any) -> tuple[str, ...]:
        self.done.append("look")
        self.pids = set(pids)
        return self._users


class FencingTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path) / "fences"

    def await_changes(self, container: str) -> int:
        self.assertEqual("c1", container)
        return 7

    def enter(self, root: Root, disk: BlockDevice = DISK, failure: Exception | None = None) -> None:
        with fenced(root, self.directory, 7, NODE, os.getpid(), disk, 0o600):
            root.done.append("block")
            if failure:
                raise failure

    def test_nobody_can_open_it_before_it_is_known_that_nobody_has(self) -> None:
        root = Root()
        self.enter(root)
        self.assertEqual([], list(self.directory.iterdir()))
        self.assertEqual(["fence", "look", "block", RESTORED], root.done)

    def test_a_device_in_use_is_given_back(self) -> None:
        root = Root(users=("process 9 (dd)",))
        self.assertIn("process 9 (dd)", str(self.assertRaises(DeviceInUse, self.enter, root)))
        self.assertEqual(["fence", "look", RESTORED], root.done)

    def test_those_to_whom_it_may_have_been_sent_are_looked_at_too(self) -> None:
        root = Root(users=("process 9 (dd)",))
        with contextlib.suppress(DeviceInUse), fenced(root, self.directory, 7, NODE, os.getpid(), DISK, 0o600, {1, 2}):
            self.fail("it is in use")
        self.assertEqual({os.getpid(), 1, 2}, root.pids)

    def test_nothing_is_fenced_that_cannot_be_recorded(self) -> None:
        full = OSError(errno.ENOSPC, "No space left on device")
        self.useFixture(fixtures.MockPatch("containerhost.linux.files.atomic_write", side_effect=full))
        root = Root()
        self.assertIn("No space left", str(self.assertRaises(HostActionFailed, self.enter, root)))
        self.assertEqual([], root.done)

    def test_it_is_given_back_after_a_failure(self) -> None:
        root = Root()
        self.assertRaises(KeyError, self.enter, root, failure=KeyError())
        self.assertEqual(RESTORED, root.done[-1])

    def test_a_device_that_is_gone_from_the_host_is_in_nobodys_hands(self) -> None:
        root = Root()
        self.enter(root, BlockDevice("v", "/dev/no-such-device", "/dev/vdb"))
        self.assertEqual(["block"], root.done)

    def killed(self, root: Root) -> None:
        """Fence the disk in a process that is killed."""
        container, child = os.getpid(), os.fork()
        if child == 0:
            with fenced(root, self.directory, 7, NODE, container, DISK, 0o600):
                os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)

    def test_what_a_killed_process_left_fenced_is_restored_once(self) -> None:
        root = Root()
        self.killed(root)
        self.assertEqual(1, len(list(self.directory.iterdir())))
        for _ in range(2):
            self.assertEqual((), restore_all(root, self.directory, self.await_changes))
        self.assertEqual([RESTORED], root.done)

    def test_what_another_release_left_fenced_is_restored(self) -> None:
        for release in (of_first_release, of_later_release):
            root = Root()
            self.killed(root)
            (record,) = self.directory.iterdir()
            release(record)
            self.assertEqual((), restore_all(root, self.directory, self.await_changes))
            self.assertEqual([RESTORED], root.done)

    def test_what_a_release_left_fenced_that_knew_the_node_by_its_path_stays_so(self) -> None:
        root = Root()
        self.killed(root)
        (record,) = self.directory.iterdir()
        data = json.loads(record.read_text())
        del data["node"]
        record.write_text(json.dumps(data))
        (complaint,) = restore_all(root, self.directory, self.await_changes)
        self.assertIn("until that restarts", complaint)
        self.assertEqual([], root.done)

    def test_what_the_daemon_may_still_take_away_is_not_restored_before_it_is_known(self) -> None:
        def unsettled(container: str) -> int:
            raise EngineTimeout("it goes on")

        root = Root()
        self.killed(root)
        self.assertEqual(1, len(restore_all(root, self.directory, unsettled)))
        self.assertEqual(([], 1), (root.done, len(list(self.directory.iterdir()))))

    def test_a_container_that_started_anew_has_nothing_to_restore(self) -> None:
        root = Root()
        self.killed(root)
        (record,) = self.directory.iterdir()
        data = json.loads(record.read_text())
        data["container"]["began"] += 1
        record.write_text(json.dumps(data))
        self.assertEqual((), restore_all(root, self.directory, self.await_changes))
        self.assertEqual(([], []), (root.done, list(self.directory.iterdir())))

    def test_a_record_that_cannot_be_read_is_told_and_kept(self) -> None:
        self.killed(Root())
        (record,) = self.directory.iterdir()
        for text in ("", "{}", "[]", '{"by": 1}'):
            record.write_text(text)
            (complaint,) = restore_all(Root(), self.directory, self.await_changes)
            self.assertIn(str(record), complaint)
