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

from onedock import imageref
from onedock.imageref import ImageRef
from onedock.root_images import TRIES, RootImages
from onedriver.errors import DriverError
from onedriver.node.imagelocks import Busy

SECONDS = 10
SLOW, QUICK = (f"sha256:{digit * 64}" for digit in "12")


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

    def test_an_archive_takes_no_room_that_the_disks_of_others_grow_into(self) -> None:
        self.vm(1, QUICK)
        file = self.base / "0/1/disk.0"
        before = file.read_text()
        with (mock.patch.object(FakeImages, "commit", lambda *names: SLOW, create=True),
              mock.patch.object(FakeImages, "size", lambda self, image: 1 << 60, create=True),
              mock.patch.object(FakeImages, "save", create=True) as save,
              mock.patch.object(FakeImages, "remove")):
            error = self.assertRaises(DriverError, self.root_images.keep, 1, file)
        self.assertTrue(str(error).startswith("No space left on device"), error)
        save.assert_not_called()
        self.assertEqual(before, file.read_text())

    def test_an_image_that_goes_before_it_has_a_name_is_loaded_again(self) -> None:
        self.images.lost = TRIES - 1
        self.assertEqual(QUICK, self.root_images.ensure(self.vm(1, QUICK)))
        self.assertEqual({"onedock/one-1:root": QUICK}, self.images.tags)
        self.images.lost = TRIES
        self.root_images.release(1)
        self.assertRaises(DriverError, self.root_images.ensure, self.vm(2, QUICK))
