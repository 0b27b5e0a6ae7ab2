# SPDX-License-Identifier: Apache-2.0
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from containerhost.allocation.store import AllocationStore, Consumer
from tests.unit.containerhost.allocation.test_store import BERT, StoreTestCase, device, related

REPOSITORY = Path(__file__).resolve().parents[4]


class Killed(StoreTestCase):
    def claimed(self, step: int, ids: Sequence[str]) -> int:
        """Claim devices in a process that is killed before a system call, and return its exit code."""
        child = os.fork()
        if not child:
            try:
                self.claim(step, ids)
                os._exit(0)
            finally:
                os._exit(1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def claim(self, step: int, ids: Sequence[str]) -> None:
        left = step

        def deadly(call: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*arguments: Any, **options: Any) -> Any:
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments, **options)
            return wrapped

        for call in ("fsync", "rename", "unlink"):
            setattr(os, call, deadly(getattr(os, call)))
        AllocationStore(self.root).claim([device(one) for one in ids], Consumer("nova", "lxd", "victim", "victim"),
                                         lambda one: ())

    def test_a_claim_killed_at_any_step_is_taken_back_or_complete(self):
        ids = [f"0000:3b:00.{number}" for number in range(3)]
        outcomes = []
        for step in range(1, 40):
            code = self.claimed(step, ids)
            # Later readers find all of it or nothing.
            self.store.claim([device("0000:ff:00.0")], BERT, related)
            self.store.release("0000:ff:00.0", BERT)
            outcomes.append((code, len(self.held())))
            self.assertEqual([], [name for name in os.listdir(self.root) if name == ".claim"])
            for record in self.store.records().values():
                self.store.release(record.device_id, record.consumer)
            if code == 0:
                break
        killed = [held for code, held in outcomes if code == -signal.SIGKILL]
        self.assertEqual({0, 3}, set(killed))
        self.assertEqual((0, 3), outcomes[-1])
        self.assertGreater(len(killed), 10)


RACER = """
import sys, time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from containerhost.errors import DeviceHeld
from containerhost.allocation.store import Consumer, AllocationStore
from containerhost.allocation.store import AllocationStore, Consumer
from tests.unit.containerhost.allocation.test_store import device
root, name, begin, rounds, *ids = sys.argv[1:]
consumer, store, wins = Consumer("nova", "lxd", name, name), AllocationStore(Path(root)), 0
devices = [device(one) for one in ids]
marker = Path(root).parent / "inside"
time.sleep(max(0, float(begin) - time.time()))
for _ in range(int(rounds)):
    try:
        store.claim(devices, consumer, lambda one: ())
    except DeviceHeld:
        time.sleep(0.001)
        continue
    marker.touch(exist_ok=False)  # fails if another process is between its claim and its release
    assert set(store.held_by(consumer)) == set(ids)
    marker.unlink()
    for one in ids:
        store.release(one, consumer)
    wins += 1
print(wins)
"""


class Concurrency(StoreTestCase):
    def test_processes_never_hold_one_device_together(self):
        self.root.mkdir()
        begin = str(time.time() + 1.5)
        ids = ["0000:3b:00.0", "0000:3c:00.0"]
        racers = [subprocess.Popen([sys.executable, "-c", RACER, str(self.root), f"c{number}", begin, "25",
                                    *(ids if number % 2 else reversed(ids))],
                                   cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                  for number in range(4)]
        results = [(racer.communicate(timeout=120), racer.returncode) for racer in racers]
        self.assertEqual([0] * 4, [code for _, code in results], results)
        self.assertGreater(sum(int(output) for (output, _), _ in results), 4)
        self.assertEqual({}, self.held())
