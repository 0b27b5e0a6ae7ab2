# SPDX-License-Identifier: Apache-2.0
import contextlib
import io
from unittest import mock

import testtools

from onedock import node
from onedock.conf import Options

HOUR = 3600


class LockTest(testtools.TestCase):
    def locked(self, hours: float, *how: str) -> int:
        """:returns: the exit status where the transfer driver takes some hours"""
        with (mock.patch.object(node, "alone", return_value=contextlib.nullcontext(Options())),
              mock.patch.object(node.backend, "vmm") as vmm, mock.patch("sys.stdout", io.StringIO()),
              mock.patch("select.select", lambda read, _, __, timeout: (read if timeout > hours * HOUR else [],))):
            vmm.return_value.uses_disk.return_value = bool(how)
            return node.lock("1", "0", "2", *how)

    def test_a_large_disk_of_a_vm_that_is_off_is_sent_under_it(self) -> None:
        """1 TB takes more than two hours by a link of 1 Gbit/s."""
        self.assertEqual([0, 0], [self.locked(hours) for hours in (0.1, 3)])

    def test_a_vm_that_runs_waits_no_longer_than_for_an_operation_of_the_engine(self) -> None:
        self.assertEqual([0, 1], [self.locked(hours, "frozen") for hours in (0.01, 3)])
