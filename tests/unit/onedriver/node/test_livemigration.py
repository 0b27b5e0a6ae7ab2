# SPDX-License-Identifier: Apache-2.0
"""Test the protocol between the two nodes of a live migration."""

import os
from typing import Any
from unittest import mock

import testtools

from onedriver import actions
from onedriver.errors import DriverError
from onedriver.node import livemigration


class ConversationTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.stdin, self.asked, self.answered, self.stdout = (
            self.opened(fd, mode) for fd, mode in zip((*os.pipe(), *os.pipe()), ("rb", "wb", "rb", "wb"), strict=True))
        self.arrival = mock.Mock()
        self.now = 0.0

    def opened(self, fd: int, mode: str) -> Any:
        file = open(fd, mode, buffering=0)  # noqa: SIM115
        self.addCleanup(file.close)
        return file

    def serve(self) -> None:
        livemigration.serve(self.arrival, livemigration.requests(self.stdin, 5), self.stdout)

    def ask(self, **request: object) -> None:
        livemigration.write(self.asked, request)

    def test_each_request_is_answered_until_the_vm_starts(self) -> None:
        livemigration.serve(self.arrival, [{"part": 1}, {"part": 2}, {"start": True}], self.stdout)
        self.assertEqual([mock.call.fetch({"part": 1}), mock.call.fetch({"part": 2}), mock.call.start()],
                         self.arrival.mock_calls)
        self.assertEqual(b"{}\n{}\n", self.answered.read(100))

    def test_source_that_is_gone_ends_it_before_the_start(self) -> None:
        self.ask(part=1)
        self.asked.close()
        self.assertIn("has stopped", str(self.assertRaises(DriverError, self.serve)))
        self.arrival.start.assert_not_called()

    def test_anything_else_is_refused(self) -> None:
        for line in (b"[]\n", b"no JSON\n"):
            self.asked.write(line)
            self.assertRaises(DriverError, self.serve)
        self.assertRaises(DriverError, livemigration.read, self.stdin, 0.01)
        self.assertRaises(DriverError, livemigration.document_of, {"document": "<VM/>"})

    def test_line_in_small_pieces_must_end_in_time(self) -> None:
        pieces = iter(range(100))

        def is_readable(stream: Any, timeout: float) -> bool:
            self.now += 3
            self.asked.write(b"%d" % next(pieces))
            return timeout > 3

        with (mock.patch.object(livemigration, "is_readable", is_readable),
              mock.patch("time.monotonic", lambda: self.now)):
            self.assertIn("has not answered for 5 s", str(self.assertRaises(DriverError, self.serve)))

    def test_line_that_is_nested_too_deep_is_refused(self) -> None:
        self.asked.write(b"[" * 4_000 + b"\n")
        self.assertIn("the other node sends", str(self.assertRaises(DriverError, self.serve)))

    def test_reader_that_is_gone_is_seen(self) -> None:
        self.assertFalse(livemigration.is_abandoned(self.stdout.fileno()))
        self.answered.close()
        self.assertTrue(livemigration.is_abandoned(self.stdout.fileno()))


class AgentTest(testtools.TestCase):
    def test_socket_of_the_agent_follows_the_arguments_of_oned(self) -> None:
        argv = ["one-2", "node2", "node1", "2", "node1"]
        for more in ([], ["/tmp/agent"]):
            found, vm_id, host = actions.split("migrate", [*argv, *more])
            self.assertEqual((2, "node1", [*more, ""][0]), (vm_id, host, found.get("agent", "")))
        self.assertNotIn("agent", actions.split("cancel", ["one-2", "node1", "2", "node1", "/tmp/agent"])[0])
