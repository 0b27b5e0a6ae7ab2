# SPDX-License-Identifier: Apache-2.0
"""Follow the servers' states as nova writes them: a test need not ask the API over and over, which costs more."""

import functools
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import fixtures
from nova.api.openstack import common
from nova.objects import Instance

LOOK = 3.0  # s after which the API is queried even without a write of nova
SOON = 0.25  # s; not everything that a server shows is in the record whose changes are seen here


class State(NamedTuple):
    vm: str | None = None
    task: str | None = None
    deleted: bool = False

    def fits(self, expected: Mapping[str, Any]) -> bool:
        """Return whether a server in this state may show what is expected."""
        if self.vm is None or self.deleted:
            return self.deleted
        shown = {"status": common.status_from_state(self.vm, self.task), "OS-EXT-STS:task_state": self.task}
        return all(shown[name] == expected[name] for name in shown.keys() & expected.keys())


class States(fixtures.Fixture):
    def __init__(self) -> None:
        super().__init__()
        self._states: dict[str, State] = {}
        self._changed = threading.Condition()

    def _setUp(self) -> None:
        for name in ("create", "save", "destroy"):
            self.useFixture(fixtures.MonkeyPatch(f"nova.objects.Instance.{name}",
                                                 self._telling(getattr(Instance, name), name == "destroy")))

    def _telling(self, method: Callable[..., Any], deleted: bool) -> Callable[..., Any]:
        @functools.wraps(method)
        def wrapper(instance: Any, *args: Any, **kwargs: Any) -> Any:
            result = method(instance, *args, **kwargs)
            with self._changed:
                self._states[instance.uuid] = State(*(
                    getattr(instance, name) if instance.obj_attr_is_set(name) else None
                    for name in ("vm_state", "task_state")), deleted)
                self._changed.notify_all()
            return result
        return wrapper

    def of(self, uuid: str) -> State | None:
        """As nova last wrote it; None where it did not in this process."""
        with self._changed:
            return self._states.get(uuid)

    def await_change(self, uuid: str, seen: State | None, wanted: Callable[[State], bool], limit: float = LOOK) -> None:
        """Wait until the server has a wanted state, and another than the one ``seen``.

        :param limit: seconds to wait at most; a moment where ``seen`` is a wanted one, which the API did not show yet
        """
        with self._changed:
            end = time.monotonic() + (SOON if seen is not None and wanted(seen) else limit)
            while (left := end - time.monotonic()) > 0:
                state = self._states.get(uuid)
                if state is not None and state != seen and wanted(state):
                    return
                self._changed.wait(left)
