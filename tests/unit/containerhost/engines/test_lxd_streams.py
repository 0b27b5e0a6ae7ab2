"""What LXD's events and commands mean; the connections themselves are tried on a real daemon."""

from typing import Any

import testtools

from containerhost import errors
from containerhost.engines import Change, Status
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
