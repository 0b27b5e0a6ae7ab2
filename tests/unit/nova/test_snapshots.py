# SPDX-License-Identifier: Apache-2.0
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fixtures
import nova.conf
import testtools
from nova import exception, objects
from nova.compute import task_states

from containerhost import errors
from containerhost.engines.capabilities import Packed, Source
from nova_lxd_ext import conf
from nova_lxd_ext.errors import LXDError
from nova_lxd_ext.image.snapshots import Snapshots
from nova_lxd_ext.instance.requested import NOTHING
from tests.unit.nova import fakes, records

conf.register()
IMAGE_ID = "99d72b67-5112-4e06-821c-3b2de02a752a"
PIECES = (b"a" * 40, b"b" * 60)


class Exports:
    """:ivar fail: what a method raises, by its name"""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fail: dict[str, Exception] = {}
        self.purged: Any = None

    def _called(self, method: str) -> None:
        self.asked.append(method)
        if method in self.fail:
            raise self.fail[method]

    def take(self, name: str, key: str) -> Source:
        self._called("take")
        return Source("snapshot", name, "armv8l")

    def pack(self, source: Source, key: str, progress: Any) -> Packed:
        self._called("pack")
        for percent in range(101):
            progress(percent)
        return Packed("f", 100)

    @contextlib.contextmanager
    def reading(self, packed: Packed) -> Iterator[Any]:
        self._called("reading")
        yield Reader()

    def discard(self, name: str, key: str) -> None:
        self._called("discard")

    def purge(self, names: Any, running: Any) -> tuple[str, ...]:
        self.purged = (list(names), set(running))
        return ()


class Reader:
    def __init__(self) -> None:
        self.done = 0
        self.pieces = list(PIECES)

    def read(self) -> bytes:
        piece = self.pieces.pop(0) if self.pieces else b""
        self.done += len(piece)
        return piece


class Glance:
    def __init__(self) -> None:
        self.image: dict[str, Any] = {}
        self.received = b""
        self.lost = 0
        self.fail: Exception | None = None
        self.there = True

    def get(self, context: Any, image_id: str) -> dict[str, Any]:
        if not self.there:
            raise exception.ImageNotFound(image_id=image_id)
        return self.image

    def update(self, context: Any, image_id: str, image: dict[str, Any], data: Any = None) -> dict[str, Any]:
        self.image = image
        while piece := data.read(1 << 16):
            self.received += piece
        if self.fail:
            raise self.fail
        return {"size": len(self.received) - self.lost}


class SnapshotsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.world = fakes.world(directory, nova.conf.CONF)
        self.server = records.instance(progress=100)
        self.world.lifecycle.spawn(None, self.server, objects.ImageMeta(id=records.IMAGE), (), None, NOTHING, True)
        self.exports, self.glance = Exports(), Glance()
        self.size: int | None = None
        self.snapshots = Snapshots(self.world.states, self.exports, self.glance, lambda name: self.size)  # type: ignore[arg-type]
        self.states: list[tuple[str, str | None]] = []
        self.shown: list[int] = []
        self.server.save.side_effect = lambda expected_task_state: self.shown.append(self.server.progress)

    def take(self) -> None:
        self.snapshots.take(None, self.server, IMAGE_ID, lambda task_state, expected_state=None:
                            self.states.append((task_state, expected_state)))

    def test_uploads_what_was_packed_and_shows_how_far_it_is(self) -> None:
        self.take()
        self.assertEqual(b"".join(PIECES), self.glance.received)
        self.assertEqual([(task_states.IMAGE_PENDING_UPLOAD, None),
                          (task_states.IMAGE_UPLOADING, task_states.IMAGE_PENDING_UPLOAD)], self.states)
        self.assertEqual([0, 10, 20, 30, 40, 50, 50, 70, 100], self.shown)
        self.assertEqual(100, self.server.progress)
        self.assertEqual("discard", self.exports.asked[-1])
        self.assertEqual(("raw", "bare", "armv7l"), (self.glance.image["disk_format"],
                         self.glance.image["container_format"], self.glance.image["properties"]["hw_architecture"]))

    def test_server_with_large_holes_is_refused_before_anything_is_copied(self) -> None:
        root = self.server.flavor.root_gb * 2**30
        for self.size in (5 * root + 1, 2**63 - 1):
            self.assertIn(f"{self.size} bytes long", str(self.assertRaises(LXDError, self.take)))
            self.assertEqual([], self.exports.asked)
        self.size = 5 * root
        self.take()

    def test_every_failure_leaves_nothing_and_has_a_reason(self) -> None:
        full = errors.StorageFull("is the disk full")
        gone = errors.EngineNotFound("image not found")
        for step, error in (("take", full), ("pack", full), ("reading", full), ("pack", gone)):
            with self.subTest(step):
                self.exports.fail = {step: error}
                found = self.assertRaises(LXDError, self.take)
                self.assertIn(str(error), str(found))
                self.assertEqual(("discard", 100), (self.exports.asked[-1], self.server.progress))

    def test_a_server_that_is_gone_is_told_as_such(self) -> None:
        self.exports.fail = {"pack": errors.EngineError("something odd")}
        self.world.engine.delete(self.server.name)
        self.assertRaises(exception.InstanceNotFound, self.take)

    def test_a_deleted_server_ends_the_upload(self) -> None:
        self.server.save.side_effect = exception.UnexpectedDeletingTaskStateError(
            instance_uuid=records.UUID, expected={}, actual={})
        self.assertRaises(exception.UnexpectedDeletingTaskStateError, self.take)
        self.assertEqual("discard", self.exports.asked[-1])

    def test_an_image_that_is_gone_is_told_as_such(self) -> None:
        self.glance.fail, self.glance.there = RuntimeError("HTTP 410"), False
        self.assertRaises(exception.ImageNotFound, self.take)
        self.glance.there = True
        self.assertRaises(RuntimeError, self.take)

    def test_half_an_image_is_none(self) -> None:
        self.glance.lost = 1
        self.assertIn("99 of the snapshot's 100", str(self.assertRaises(exception.ImageUnacceptable, self.take)))

    def test_what_cannot_be_removed_now_does_not_fail_a_snapshot(self) -> None:
        self.exports.fail = {"discard": errors.EngineUnavailable("away")}
        self.take()
        self.assertEqual(b"".join(PIECES), self.glance.received)

    def test_purging_spares_what_runs(self) -> None:
        self.exports.pack = lambda source, key, progress: self.snapshots.purge()  # type: ignore[method-assign]
        self.assertRaises(AttributeError, self.take)
        self.assertEqual(([self.server.name], {IMAGE_ID}), self.exports.purged)
        self.snapshots.purge()
        self.assertEqual(([self.server.name], set()), self.exports.purged)
