# SPDX-License-Identifier: Apache-2.0
"""Without mounts: what the kernel is handed, and what it refuses anybody."""

import queue
import subprocess
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import fixtures
import testtools

from containerhost.errors import HostActionFailed
from containerhost.storage import idmounts, loops, mountapi
from containerhost.storage.idmounts import IdMap, IdRange, user_namespace


class MountsTest(testtools.TestCase):
    def test_the_kernels_structure_has_its_size(self) -> None:
        self.assertEqual(304, loops.CONFIG.size)  # sizeof(struct loop_config)

    def test_a_file_system_that_no_kernel_has(self) -> None:
        error = self.assertRaises(HostActionFailed, mountapi.mounted, "no-such-fs", "/dev/null", {}, 0)
        self.assertIn("no-such-fs", str(error))

    def test_a_directory_where_nothing_is_mounted(self) -> None:
        idmounts.unmount(Path(self.useFixture(fixtures.TempDir()).path))
        idmounts.unmount(Path("/nonexistent"))

    def test_a_file_is_over_no_loop_device(self) -> None:
        self.assertIsNone(loops.existing(Path(__file__)))
        self.assertIsNone(loops.attribute("/dev/no-such-loop", "backing_file"))


class UserNamespaceTest(testtools.TestCase):
    def test_ids_that_the_kernel_refuses_are_an_error_and_leave_no_process(self) -> None:
        """No process waits for the other one's end."""
        begun: list[subprocess.Popen[bytes]] = []

        def popen(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
            begun.append(subprocess.Popen(*arguments, **options))
            self.addCleanup(begun[0].kill)
            return begun[0]

        self.useFixture(fixtures.MonkeyPatch("containerhost.linux.run.subprocess", mock.Mock(Popen=popen)))
        wrong = (IdRange(0, 100000, 10), IdRange(5, 200000, 10))  # they overlap
        failed = queue.Queue[str]()

        def use() -> None:
            try:
                with user_namespace(IdMap(wrong, wrong)):
                    pass
            except HostActionFailed as error:
                failed.put(str(error))

        threading.Thread(target=use, daemon=True).start()
        self.assertIn("refuses the uid_map", failed.get(timeout=30))
        self.assertIsNotNone(begun[0].poll())
