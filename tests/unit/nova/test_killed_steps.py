# SPDX-License-Identifier: Apache-2.0
"""nova-compute killed at every step of a boot and of an end, on an engine in memory.

A step is either edge of a call to the engine, of a change of an allocation record, of an action as root and of a change
of the server's files. After the kill no call does anything: no roll-back runs.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import fixtures
from nova import objects
from nova.compute import task_states, vm_states

from containerhost.allocation.store import AllocationStore
from nova_lxd_ext.storage import configdrive, directories
from tests.unit.nova import fakes, records
from tests.unit.nova.fakes import GPU_0, GPU_1, Killed
from tests.unit.nova.test_lifecycle import LifecycleTest

OUTSIDE: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (AllocationStore, ("claim", "prepare", "attach", "begin_cleaning", "release")),
    (configdrive, ("write",)), (directories, ("remove",)),
    *((kind, tuple(name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")))
      for kind in (fakes.FakeEngine, fakes.NoPrivileges)))
FEWEST_STEPS, MOST_STEPS = 10, 400


class Kill(fixtures.Fixture):
    """:param step: at which the process ends; None lets it live
    """

    def __init__(self, step: int | None) -> None:
        super().__init__()
        self._at = step
        self.steps = 0

    def _setUp(self) -> None:
        for target, names in OUTSIDE:
            for name in names:
                prefix = target.__name__ if inspect.ismodule(target) else f"{target.__module__}.{target.__name__}"
                self.useFixture(fixtures.MonkeyPatch(f"{prefix}.{name}", self._around(getattr(target, name))))

    def _around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self._step()
            result = function(*args, **kwargs)
            self._step()
            return result
        return call

    def _step(self) -> None:
        if self._at is not None and self.steps >= self._at:
            raise Killed
        self.steps += 1


class KilledStepsTest(LifecycleTest):
    def server(self, **state: Any) -> objects.Instance:
        return records.instance(("gpu", GPU_0), ("gpu", GPU_1), config_drive="True", **state)

    def killed_at_each(self, action: Callable[[], None], before: Callable[[], None] = lambda: None) -> Iterator[int]:
        """Let the action finish once, and then kill it at each step; yield the steps, -1 first."""
        before()
        with Kill(None) as living:
            action()
        yield -1
        self.assertIn(living.steps, range(FEWEST_STEPS, MOST_STEPS))
        for step in range(living.steps):
            before()
            with Kill(step):
                self.assertRaises(Killed, action)
            yield step

    def restart(self, server: objects.Instance) -> None:
        self.world = self.restarted()
        self.world.lifecycle.reconcile([server])
        self.world.lifecycle.end_interrupted_boots([server])

    def end(self) -> None:
        self.world.lifecycle.remove(self.server(task_state=task_states.DELETING))

    def test_boot(self) -> None:
        """Nothing of an unfinished boot is left after the next start."""
        for step in self.killed_at_each(lambda: self.spawn(self.server())):
            if step == -1:
                self.end()
            else:
                self.restart(self.server(vm_state=vm_states.BUILDING, task_state=task_states.SPAWNING))
            self.assertEqual({}, self.leftovers(), f"step {step}")

    def test_end(self) -> None:
        for step in self.killed_at_each(self.end, lambda: self.spawn(self.server())):
            self.restart(self.server(vm_state=vm_states.ACTIVE, task_state=task_states.DELETING))
            self.end()
            self.assertEqual({}, self.leftovers(), f"step {step}")


del LifecycleTest  # it has no tests, but its subclasses would be found here
