# SPDX-License-Identifier: Apache-2.0
"""Test the meaning of LXD's events and commands; the connections themselves are tested on a real daemon."""

import threading
import time
from typing import Any
from unittest import mock

import fixtures
import testtools

from containerhost import errors
from containerhost.engines.contract import Change, Status
from containerhost.engines.lxd import events, execute


class EventsTest(testtools.TestCase):
    def test_only_what_changes_whether_a_container_runs(self) -> None:
        for action, source, expected in (
            ("instance-shutdown", "/1.0/instances/c1", Change("c1", Status.STOPPED)),
            ("instance-stopped", "/1.0/instances/c1?project=lab", Change("c1", Status.STOPPED)),
            ("instance-restarted", "/1.0/instances/c1", Change("c1", Status.RUNNING)),
            ("instance-paused", "/1.0/instances/c1", Change("c1", Status.FROZEN)),
            ("instance-exec", "/1.0/instances/c1", None),
            ("instance-started", "/1.0/instances/c1/snapshots/s", None),
            ("image-created", "/1.0/images/abc", None),
        ):
            with self.subTest(action):
                self.assertEqual(expected, events.change_of({"metadata": {"action": action, "source": source}}))
        self.assertIsNone(events.change_of({"metadata": None}))


class FailingClient:
    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome

    def wait(self, operation: Any, asked: str, timeout: int) -> Any:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return {"return": self.outcome}


class SilentStream:
    """A stream of a command that reads nothing, writes nothing and does not end."""

    def __init__(self, settings: Any, path: str, params: Any, asked: str) -> None:
        self.sent: list[bytes] = []
        self._aborted = threading.Event()

    def __enter__(self) -> "SilentStream":
        return self

    def __exit__(self, *error: object) -> None:
        """Closed."""

    def send(self, data: bytes) -> None:
        self.sent.append(data)
        if data != execute.KILL:
            self._aborted.wait(20)
            raise errors.EngineUnavailable("closed")

    def end_of_input(self) -> None:
        self.sent.append(b"")

    def receive(self, timeout: float) -> bytes | None:
        time.sleep(timeout)
        raise errors.EngineTimeout("nothing came in time")

    def abort(self) -> None:
        self._aborted.set()


class CommandTest(testtools.TestCase):
    def test_input_that_is_never_read_does_not_outlast_the_timeout(self) -> None:
        self.useFixture(fixtures.MockPatchObject(execute, "Stream", SilentStream))
        fds = {key: key for key in execute.STREAMS}
        client = mock.Mock()
        client.request.return_value.json.return_value = {"type": "async", "metadata": {"id": "7", "metadata": {
            "fds": fds}}}
        self.useFixture(fixtures.MockPatchObject(execute, "document", lambda response, asked: response.json()))
        command = execute.Command(client, "c1", ["sleep", "1000"])
        start = time.monotonic()
        error = self.assertRaises(errors.EngineTimeout, command.finish, b"input", 1)
        self.assertIn("it is killed", str(error))
        self.assertLess(time.monotonic() - start, 10)
        self.assertEqual([execute.KILL], command._streams["control"].sent)
        command.close()


class ExitStatusTest(testtools.TestCase):
    def status(self, outcome: Any) -> int:
        return execute.exit_status(FailingClient(outcome), {}, "run it", 5)

    def test_what_cannot_be_run_has_a_shells_status(self) -> None:
        for outcome, expected in ((0, 0), (3, 3), (errors.EngineError("run it: LXD says: Command not found"), 127),
                                  (errors.EngineError("run it: LXD says: Command not executable"), 126)):
            with self.subTest(outcome):
                self.assertEqual(expected, self.status(outcome))

    def test_what_else_fails_is_an_error(self) -> None:
        self.assertRaises(errors.EngineError, self.status, errors.EngineError("run it: LXD says: no idea"))
