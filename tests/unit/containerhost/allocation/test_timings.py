# SPDX-License-Identifier: Apache-2.0
"""Counts of what was done to devices, in a file that all processes share."""

from pathlib import Path

import fixtures
import testtools

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.refusals import Request
from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.allocation.timings import BOUNDS, Operation, Result, Timing, Timings
from containerhost.errors import DeviceHeld, DeviceNotFound, HostActionFailed
from containerhost.inventory.scan import HostView
from tests.unit.containerhost.allocation.allocatorcase import AllocatorTestCase, Willing, consumer
from tests.unit.containerhost.hosts import MEMORY

CONSUMER = Consumer("nova", "lxd", "one", "uuid")


def count(directory: Path, times: int) -> None:
    for _ in range(times):
        with Timings(directory).measured(Operation.ACQUIRE, CONSUMER):
            pass


class TimingsCase(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir(rootdir=MEMORY)).path)
        self.timings = Timings(self.directory)

    def totals(self) -> dict[tuple[str, str], int]:
        return {(one.operation.value, one.result.value): sum(one.counts) for one in self.timings.read()}


class TimingsTest(TimingsCase):
    def test_bucket_of_a_duration(self) -> None:
        timing = Timing("nova", Operation.ACQUIRE, Result.DONE).plus(BOUNDS[0]).plus(BOUNDS[0] * 1.5).plus(1000.0)
        self.assertEqual((1, 1, *[0] * (len(BOUNDS) - 2), 1), timing.counts)
        self.assertAlmostEqual(1000.0 + BOUNDS[0] * 2.5, timing.seconds)

    def test_errors_are_refusals_or_failures(self) -> None:
        for error in (DeviceHeld("held"), DeviceNotFound("gone"), HostActionFailed("no"), ZeroDivisionError()):
            with testtools.ExpectedException(type(error)), self.timings.measured(Operation.ACQUIRE, CONSUMER):
                raise error
        self.assertEqual({("acquire", "refused"): 2, ("acquire", "failed"): 2}, self.totals())

    def test_odd_file_begins_anew(self) -> None:
        for content in (b"", b"[]", b'{"timings": 3}', b'{"timings": [{"driver": 1}]}', b"{" * 10_000):
            (self.directory / ".timings").write_bytes(content)
            self.assertEqual((), self.timings.read(), content)
            count(self.directory, 1)
            self.assertEqual({("acquire", "done"): 1}, self.totals(), content)

    def test_count_that_cannot_be_written_changes_nothing_else(self) -> None:
        (self.directory / ".timings").mkdir()
        with self.timings.measured(Operation.ACQUIRE, CONSUMER):
            done = True
        self.assertTrue(done)


class AllocatorCounts(AllocatorTestCase):
    def test_acquisition_and_release_are_counted(self) -> None:
        store = AllocationStore(self.store.directory)
        allocator = DeviceAllocator(store, lambda: HostView(self.host), Willing(), host=self.host)
        gpu = self.gpus[0].id
        allocator.acquire([Request(gpu)], consumer("one"))
        self.assertRaises(DeviceHeld, allocator.acquire, [Request(gpu)], consumer("two"))
        allocator.release(consumer("one"))
        allocator.release(consumer("one"))  # had nothing any more: no operation
        self.assertEqual({("acquire", "done"): 1, ("acquire", "refused"): 1, ("release", "done"): 1},
                         {(one.operation.value, one.result.value): sum(one.counts)
                          for one in Timings(store.directory).read()})
