# SPDX-License-Identifier: Apache-2.0
"""Try who waits for whom while images are loaded and removed; the loads themselves are tried on a real Docker."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO
from unittest import mock

import fixtures
import testtools

from containerhost.engines.docker.images import Divided
from containerhost.engines.docker.layerwriter import Bounds
from containerhost.errors import EngineError
from onedock import imageref
from onedock.imageref import ImageRef
from onedock.root_images import TRIES, LeavingRoot, RootImages
from onedriver.errors import DriverError
from onedriver.node.imagelocks import Busy

SECONDS = 10
SLOW, QUICK, OWN = (f"sha256:{digit * 64}" for digit in "123")


class FakeImages:
    """:ivar tags: name -> image
    """

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.tags: dict[str, str] = {}
        self.loads: list[str] = []
        self.lost = 0
        self.begun, self.end = threading.Event(), threading.Event()

    def has(self, image: str) -> bool:
        return image in self.there

    def architecture(self, image: str) -> str:
        return ""

    def load(self, archive: BinaryIO, name: str, image: str) -> None:
        self.loads.append(image)
        if image == SLOW:
            self.begun.set()
            self.end.wait(SECONDS)
        if self.lost:
            self.lost -= 1
        else:
            self.there.add(image)

    def tag(self, image: str, repository: str, tag: str) -> None:
        self.tags[f"{repository}:{tag}"] = image

    def names(self, repository: str) -> dict[str, str]:
        return {name.removeprefix(f"{repository}:"): image for name, image in self.tags.items()
                if name.startswith(f"{repository}:")}

    def remove(self, name: str) -> None:
        image = self.tags.pop(name)
        if image not in self.tags.values():
            self.there.discard(image)


class RootImagesTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.base = Path(self.useFixture(fixtures.TempDir()).path)
        self.images = FakeImages()
        self.addCleanup(self.images.end.set)
        self.root_images = self.of_timeout(SECONDS)

    def of_timeout(self, timeout: float) -> RootImages:
        return RootImages(self.images, self.base, self.base / "state",
                          timeout)  # type: ignore[arg-type]  # images are a fake

    def vm(self, number: int, image: str) -> Any:
        directory = self.base / "0" / str(number)
        directory.mkdir(parents=True)
        (directory / "disk.0").write_text(imageref.text(ImageRef(image, "docker://tool:1", "disk.0.tar")))
        (directory / "disk.0.tar").touch()
        return SimpleNamespace(id=number, system_ds=0, root=SimpleNamespace(id=0))

    @contextlib.contextmanager
    def loading(self, vm: Any) -> Iterator[None]:
        thread = threading.Thread(target=self.root_images.ensure, args=(vm,))
        thread.start()
        self.assertTrue(self.images.begun.wait(SECONDS))
        yield
        self.images.end.set()
        thread.join()

    def test_a_slow_load_keeps_only_those_waiting_who_want_the_same_image(self) -> None:
        with self.loading(self.vm(1, SLOW)):
            self.assertEqual(QUICK, self.root_images.ensure(self.vm(2, QUICK)))
            self.root_images.release(2)
            self.assertFalse(self.images.has(QUICK))
            waiting = self.vm(3, SLOW)
            error = self.assertRaises(Busy, self.of_timeout(0.1).ensure, waiting)
            self.assertIn(SLOW, str(error))
        self.assertEqual(SLOW, self.root_images.ensure(waiting))
        self.assertEqual(([SLOW, QUICK], {SLOW}), (self.images.loads, set(self.images.tags.values())))

    def test_an_image_that_goes_before_it_has_a_name_is_loaded_again(self) -> None:
        self.images.lost = TRIES - 1
        self.assertEqual(QUICK, self.root_images.ensure(self.vm(1, QUICK)))
        self.assertEqual({"onedock/one-1:root": QUICK}, self.images.tags)
        self.images.lost = TRIES
        self.root_images.release(1)
        self.assertRaises(DriverError, self.root_images.ensure, self.vm(2, QUICK))


class KeepTest(testtools.TestCase):
    """What a container wrote is added to an archive of its image, which is written before the stop."""

    def setUp(self) -> None:
        super().setUp()
        self.base = Path(self.useFixture(fixtures.TempDir()).path)
        (self.base / "0/1").mkdir(parents=True)
        self.file = self.base / "0/1/disk.0"
        self.file.write_text(imageref.text(ImageRef(QUICK, "docker://tool:1")))
        self.archive = self.file.with_name("disk.0.tar")
        self.images = mock.Mock()
        self.images.size.side_effect = {QUICK: 1000, SLOW: 1010}.get
        self.images.layers_of.return_value = ("sha256:1",) * 118
        self.images.divided.return_value = Divided(QUICK, self.base / "upper", 10)
        self.images.save.side_effect = lambda image, archive, bounds: archive.write_text(f"{image} ")
        self.images.commit.return_value = SLOW
        self.images.append.side_effect = self.append
        self.root_images = RootImages(self.images, self.base, self.base / "state", SECONDS)

    def append(self, image: str, upper: Path, archive: Path, bounds: Bounds) -> str:
        with archive.open("a") as file:
            file.write(f"and {upper.name}")
        return OWN

    def keep(self) -> None:
        self.root_images.keep(1, self.file, self.images.stop)

    def called(self) -> list[str]:
        return [call[0] for call in self.images.mock_calls
                if call[0] in ("save", "stop", "commit", "append", "flatten")]

    def assert_kept(self, image: str, archive: str) -> None:
        self.assertEqual(ImageRef(image, "docker://tool:1", "disk.0.tar", 1), imageref.read(self.file))
        self.assertEqual(archive, self.archive.read_text())

    def assert_as_it_was(self) -> None:
        self.assertEqual(ImageRef(QUICK, "docker://tool:1"), imageref.read(self.file))
        self.assertFalse(self.archive.exists())

    def test_only_what_it_wrote_is_saved_after_the_stop(self) -> None:
        self.keep()
        self.assertEqual(["save", "stop", "commit", "append"], self.called())
        self.assert_kept(OWN, f"{QUICK} and upper")

    def test_image_of_too_many_layers_becomes_one(self) -> None:
        self.images.layers_of.return_value = ("sha256:1",) * 119
        self.images.root_size.return_value = 1000
        self.images.flatten.side_effect = lambda container, archive, bounds: archive.write_text("flat") and OWN
        self.keep()
        self.assertEqual(["stop", "flatten"], self.called())
        self.assert_kept(OWN, "flat")
        self.images.root_size.return_value = 1 << 60
        self.images.mock_calls.clear()
        self.assertRaises(DriverError, self.keep)
        self.assertEqual([], self.called())

    def test_docker_saves_all_of_it_where_it_does_not_show_the_parts(self) -> None:
        self.images.divided.return_value = None
        self.keep()
        self.assertEqual(["stop", "commit", "save"], self.called())
        self.assert_kept(SLOW, f"{SLOW} ")

    def test_docker_saves_all_of_it_where_the_parts_cannot_be_read(self) -> None:
        self.images.append.side_effect = EngineError("Input/output error")
        self.keep()
        self.assertEqual(["save", "stop", "commit", "append", "save"], self.called())
        self.assert_kept(SLOW, f"{SLOW} ")

    def test_an_archive_takes_no_room_that_the_disks_of_others_grow_into(self) -> None:
        """Where that is known before, the VM runs on."""
        self.images.size.side_effect = lambda image: 1 << 60
        for divided, called in ((self.images.divided.return_value, []), (None, ["stop", "commit"])):
            self.images.divided.return_value = divided
            error = self.assertRaises(DriverError, self.keep)
            self.assertTrue(str(error).startswith("No space left on device"), error)
            self.assertEqual(called, self.called())
            self.assert_as_it_was()

    def test_disk_is_as_it_was_where_a_step_fails(self) -> None:
        for step in ("divided", "save", "stop", "commit"):
            with self.subTest(step):
                method = getattr(self.images, step)
                before, method.side_effect = method.side_effect, EngineError("away")
                self.assertRaises(EngineError, self.keep)
                method.side_effect = before
                self.assert_as_it_was()
                self.assertEqual(mock.call.remove("onedock/one-1:kept"), self.images.mock_calls[-1])


class LeavingTest(testtools.TestCase):
    """A root that is copied while its VM runs."""

    def setUp(self) -> None:
        super().setUp()
        self.archive = Path(self.useFixture(fixtures.TempDir()).path) / "archive"
        self.archive.touch()
        self.images, self.require_wanted, self.now = mock.Mock(), mock.Mock(), 0.0
        self.leaving = LeavingRoot(self.images, "one-1", Divided(QUICK, Path("upper"), 10), self.archive,
                                   self.require_wanted, 60)
        self.useFixture(fixtures.MonkeyPatch("time.monotonic", lambda: self.now))

    def bounds(self) -> list[Bounds]:
        return [call.args[-1] for call in (self.images.save.call_args, self.images.append_changes.call_args)]

    def test_no_more_is_written_than_there_is_room(self) -> None:
        with fixtures.MockPatch("onedriver.node.room.available", return_value=1234):
            self.leaving.copy(runs=True)
        self.assertEqual([1234, 1234], [bounds.size for bounds in self.bounds()])

    def test_round_ends_in_time_or_when_it_is_cancelled(self) -> None:
        self.leaving.copy(runs=True)
        self.now += 1000
        self.leaving.copy(runs=True)
        self.assertEqual(1, self.images.save.call_count)
        bounds = self.bounds()[1]
        self.now += 59
        bounds.go_on()
        self.now += 2
        self.assertIn("60 s", str(self.assertRaises(DriverError, bounds.go_on)))
        self.require_wanted.side_effect = DriverError("cancelled")
        self.assertIn("cancelled", str(self.assertRaises(DriverError, bounds.go_on)))


class FetchTest(testtools.TestCase):
    def test_image_must_have_room_in_dockers_directory(self) -> None:
        """Docker keeps a copy of an archive until it is unpacked."""
        images, base = mock.Mock(), Path(self.useFixture(fixtures.TempDir()).path)
        images.directory.return_value, images.layers.return_value = base, ("sha256:1",)
        (base / "disk.0.tar.unfinished").write_bytes(bytes(5000))
        images.names.return_value = {}
        root_images = RootImages(images, base, base / "state", SECONDS)
        part = {"image": QUICK, "base": SLOW, "offset": 2000}
        with fixtures.MockPatch("onedriver.node.room.available", return_value=6000):
            root_images.fetch(1, base / "disk.0", part)
            images.layers.return_value = ()
            error = self.assertRaises(DriverError, root_images.fetch, 1, base / "disk.0", part)
        self.assertIn("No space left on device", str(error))
        images.load.assert_called_once()

    def test_malformed_part_is_refused(self) -> None:
        images, base = mock.Mock(), Path(self.useFixture(fixtures.TempDir()).path)
        root_images = RootImages(images, base, base / "state", SECONDS)
        good: dict[str, object] = {"image": QUICK, "base": SLOW, "offset": 0}
        for wrong in ({"offset": 10**30}, {"offset": -1}, {"offset": True}, {"offset": False}, {"offset": 1.0},
                      {"offset": None}, {"image": "latest"}, {"base": 1}, {"more": 1}):
            error = self.assertRaises(DriverError, root_images.fetch, 1, base / "disk.0", good | wrong)
            self.assertIn("malformed", str(error))
        images.load.assert_not_called()
