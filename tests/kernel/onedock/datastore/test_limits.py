# SPDX-License-Identifier: Apache-2.0
"""Servers that send a byte now and then, and images that take all memory."""

import contextlib
import os
import resource
from unittest import mock

from onedock import cli
from onedock.datastore import actions, limits
from onedock.datastore.limits import TooMuchMemory
from tests.unit.onedock.datastore.base import DatastoreTestCase


class MemoryTest(DatastoreTestCase):
    def test_an_image_that_takes_all_memory_is_refused(self) -> None:
        """In a process of its own, because the limit stays."""
        process = os.fork()
        if process == 0:
            status = 1
            try:
                with mock.patch.object(actions, "act", lambda *_: str(len(bytearray(limits.MEMORY)))), \
                        mock.patch("onedriver.document.read"), contextlib.suppress(TooMuchMemory):
                    cli.datastore("cp", ["7"])
                    status = 2
                if resource.getrlimit(resource.RLIMIT_DATA)[0] <= limits.MEMORY:
                    status -= 1
            finally:
                os._exit(status)
        self.assertEqual(0, os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
