# SPDX-License-Identifier: Apache-2.0
"""Whatever processes do at once with the same devices, none has two holders and no record is lost."""

import contextlib
import fcntl
import json
import os
import pathlib
import traceback
from collections.abc import Callable, Sequence

import fixtures
import testtools
from hypothesis import given, settings
from hypothesis import strategies as st

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.refusals import Request
from containerhost.allocation.states import State
from containerhost.allocation.store import AllocationStore
from containerhost.devices.model import Kind
from containerhost.errors import DeviceHeld
from containerhost.inventory.scan import HostView, scan
from tests.unit.containerhost.allocation.allocatorcase import Willing, consumer, host
from tests.unit.containerhost.hosts import MEMORY

DEVICES = 2
#: What a container's driver does, one after another: whether it acquires or releases, and which device.
STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, DEVICES - 1)), min_size=2, max_size=8)
ROUNDS = 4  # of the scans and resets beside
Report = tuple[list[str], list[str]]  # what was wrong, and what is held at the end


class ConcurrencyTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host = host("small")
        self.gpus = [device.id for device in scan(self.host).devices if device.kind is Kind.GPU][:DEVICES]

    def allocator(self) -> DeviceAllocator:
        return DeviceAllocator(AllocationStore(self.directory / "owners"), lambda: HostView(self.host), Willing(),
                               host=self.host)

    def use(self, name: str, steps: Sequence[tuple[bool, int]]) -> Report:
        """Acquire and release. A lock on a file stands for the use of a device: a second holder does not get it."""
        allocator, wrong, used = self.allocator(), list[str](), dict[str, int]()
        for acquires, number in steps:
            gpu = self.gpus[number]
            if not acquires:
                os.close(used.pop(gpu)) if gpu in used else None
                wrong += allocator.release_device(gpu, consumer(name), None)
                continue
            with contextlib.suppress(DeviceHeld):
                allocator.acquire([Request(gpu)], consumer(name))
                if gpu not in used:
                    used[gpu] = os.open(self.directory / f"used-{number}", os.O_RDWR | os.O_CREAT)
                    try:
                        fcntl.flock(used[gpu], fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        wrong.append(f"{gpu} has two holders")
        return wrong, sorted(used)

    def look(self) -> Report:
        """Scan and read the records, as `containerhost list` and monitoring do."""
        for _ in range(ROUNDS):
            scan(self.host)
            AllocationStore(self.directory / "owners").records()
        return [], []

    def reset(self) -> Report:
        """Clean free devices, and reconcile, as the operator and a driver's start do."""
        allocator, wrong = self.allocator(), list[str]()
        for number in range(ROUNDS):
            with contextlib.suppress(DeviceHeld):
                allocator.repair.clean(self.gpus[number % DEVICES])
            wrong += allocator.reconciler.reconcile("test", "docker", ())
        return wrong, []

    def at_once(self, *acts: Callable[[], Report]) -> list[Report]:
        """Run each act in a process of its own; all begin together."""
        start, go = os.pipe()
        children = [self.child(act, start, go) for act in acts]
        os.close(start)
        os.close(go)
        reports = []
        for pid, output in children:
            with open(output) as stream:
                reports.append(json.loads(stream.read() or '[["it was killed"], []]'))
            os.waitpid(pid, 0)
        return reports

    @staticmethod
    def child(act: Callable[[], Report], start: int, go: int) -> tuple[int, int]:
        """Return the process and the fd of its report."""
        output, report = os.pipe()
        pid = os.fork()
        if pid:
            os.close(report)
            return pid, output
        try:
            os.close(go)
            os.read(start, 1)  # until no process can write any more
            try:
                found = act()
            except BaseException:
                found = [traceback.format_exc()], []
            os.write(report, json.dumps(found).encode())
        finally:
            os._exit(0)

    @settings(max_examples=12, deadline=None, derandomize=True, database=None)
    @given(first=STEPS, second=STEPS)
    def test_every_device_is_free_or_has_one_holder(self, first: Sequence[tuple[bool, int]],
                                                    second: Sequence[tuple[bool, int]]) -> None:
        with fixtures.TempDir(rootdir=MEMORY) as directory:
            self.directory = pathlib.Path(directory.path)
            reports = self.at_once(lambda: self.use("c1", first), lambda: self.use("c2", second), self.look, self.reset)
            self.assertEqual([], [text for wrong, _ in reports for text in wrong])
            held = {device_id: consumer(name) for name, (_, ids) in zip(("c1", "c2"), reports, strict=False)
                    for device_id in ids}
            records = AllocationStore(self.directory / "owners").records()
            self.assertEqual(held, {device_id: record.consumer for device_id, record in records.items()})
            self.assertEqual({State.ATTACHED} if held else set(), {record.state for record in records.values()})
            for name in ("c1", "c2"):
                self.assertEqual((), self.allocator().release(consumer(name)))
            self.assertEqual({}, AllocationStore(self.directory / "owners").records())

    def test_second_holder_is_noticed(self) -> None:
        """The test above would fail if a record were lost."""
        self.directory = pathlib.Path(self.useFixture(fixtures.TempDir(rootdir=MEMORY)).path)
        self.assertEqual(([], [self.gpus[0]]), self.use("c1", [(True, 0)]))
        (self.directory / "owners" / f"{self.gpus[0]}.json").unlink()
        self.assertEqual([f"{self.gpus[0]} has two holders"], self.use("c2", [(True, 0)])[0])
