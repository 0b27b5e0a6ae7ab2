# SPDX-License-Identifier: Apache-2.0
"""Test that recovery from a crash needs the record alone, whatever the state it was found in."""

import os
import signal
from collections.abc import Callable
from typing import Any

from containerhost.allocation.refusals import Request
from containerhost.allocation.states import State
from containerhost.allocation.store import AllocationStore
from tests import levels
from tests.unit.containerhost.allocation.allocatorcase import consumer
from tests.unit.containerhost.allocation.test_recovery import Logged, RecoveryTestCase


@levels.exhaustive("tests/model kills at random steps", tests=("test_what_any_step_leaves_is_recovered",))
class TestKilled(RecoveryTestCase):
    """A process is killed before each of its system calls that write, and before each change of a device."""

    def life(self, name: str, step: int) -> bool:
        """Allocate and release two devices in a process that is killed at a step.

        :returns: whether it was killed
        """
        child = os.fork()
        if not child:
            try:
                self.live(name, step)
            finally:
                os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL

    def live(self, name: str, step: int) -> None:
        left = step

        def count() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        def deadly(call: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*arguments: Any, **options: Any) -> Any:
                count()
                return call(*arguments, **options)
            return wrapped

        for call in ("fsync", "rename", "unlink", "link"):
            setattr(os, call, deadly(getattr(os, call)))
        root = Logged(self.root.log, count)
        allocator = self.allocator(self.store(name), root)
        allocator.acquire([Request(self.gpu.id), Request(self.vf.id)], consumer("c1"))
        root.step("granted")
        allocator.release(consumer("c1"))

    def test_what_any_step_leaves_is_recovered(self):
        for exists in (True, False):
            states, step = set(), 0
            while True:
                step += 1
                name = f"{exists}-{step}"
                self.root.log.write_text("")
                killed = self.life(name, step)
                store = self.store(name)
                states |= {record.state for record in store.records().values()}
                self.assert_recovers(store, exists, name)
                if not killed:
                    break
            self.assertGreater(step, 30)
            self.assertEqual({State.CLAIMED, State.PREPARED, State.ATTACHED, State.CLEANING}, states)

    def assert_recovers(self, store: AllocationStore, exists: bool, name: str) -> None:
        granted = "granted" in self.root.steps()
        before = store.records()
        allocator = self.allocator(store)
        self.assertEqual((), allocator.reconciler.reconcile("test", "lxd", ["c1"] if exists else []), name)
        self.assertEqual({device_id for device_id, record in before.items()
                          if exists and record.state is State.ATTACHED}, set(store.records()), name)
        self.assertEqual((), allocator.release(consumer("c1")))
        self.assertEqual({}, store.records())
        if granted:
            steps = self.root.steps()
            after = steps[steps.index("granted"):]
            self.assertIn(f"reset {self.gpu.id}", after, name)
            self.assertIn(f"reset {self.vf.id}", after, name)
        allocator.acquire([Request(self.gpu.id), Request(self.vf.id)], consumer("c2"))
