# SPDX-License-Identifier: Apache-2.0
"""Without mounts: what the kernel is handed, and what it refuses anybody."""

import queue
import subprocess
import threading
from typing import Any
from unittest import mock

import fixtures
import testtools

from containerhost.errors import HostActionFailed
from containerhost.linux.storage.idmounts import IdMap, IdRange, user_namespace


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
