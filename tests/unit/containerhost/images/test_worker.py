# SPDX-License-Identifier: Apache-2.0
"""Read what a worker says, also one in state D, which keeps its pipes open after it was killed."""

import contextlib
import os
from types import SimpleNamespace
from typing import Any

import fixtures
import testtools

from containerhost.errors import EngineTimeout
from containerhost.images.rebuild import Worker


class WorkerTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch("containerhost.images.rebuild.KILL_TIMEOUT", 0))
        self.ends: dict[str, Any] = {}
        self.opened = contextlib.ExitStack()
        self.addCleanup(self.opened.close)

    def worker(self, timeout: int) -> Worker:
        pipes = {}
        for name in ("stdout", "stderr"):
            reading, writing = os.pipe()
            pipes[name] = self.opened.enter_context(open(reading, "rb", 0))  # noqa: SIM115
            self.ends[name] = self.opened.enter_context(open(writing, "wb", 0))  # noqa: SIM115
        process: Any = SimpleNamespace(wait=lambda timeout: 0, **pipes)
        return Worker(process, timeout)

    def test_result(self) -> None:
        worker = self.worker(60)
        for piece in (b'warning\n{"unpacked": ', b"7}\n"):
            self.ends["stderr"].write(piece)
        self.ends["stderr"].close()
        self.assertEqual({"unpacked": 7}, worker.result())

    def test_pieces(self) -> None:
        worker = self.worker(60)
        self.ends["stdout"].write(b"archive")
        self.ends["stderr"].write(b"{}")
        for end in self.ends.values():
            end.close()
        self.assertEqual(b"archive", b"".join(worker))

    def test_worker_that_never_ends(self) -> None:
        worker = self.worker(0)
        self.ends["stderr"].write(b"it began")
        self.assertRaises(EngineTimeout, worker.result)
        self.assertRaises(EngineTimeout, worker.read, 1)
