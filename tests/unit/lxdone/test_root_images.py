# SPDX-License-Identifier: Apache-2.0
"""Try who waits for whom while images are imported and removed; the imports themselves are tried on a real LXD."""

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO
from unittest import mock

import fixtures
import testtools

from containerhost.engines.capabilities import Image
from containerhost.engines.spec import ContainerSpec, Cpu, Memory, RootDisk
from containerhost.errors import EngineError, EngineNotFound
from containerhost.guest import resources
from lxdone.disk.qcow2 import Origin
from lxdone.reasons import naming_size
from lxdone.root import root_images
from lxdone.root.root_images import PREFIX, RootImages
from lxdone.translate import IMAGE_LABEL
from lxdone.vmm import Vmm
from onedriver.errors import DriverError
from onedriver.node.imagelocks import Busy
from tests.unit.lxdone.machines import machine

SECONDS = 10
SPEC = ContainerSpec("one-1", "", Cpu(1), Memory(1), RootDisk("pool"))


class FakeImages:
    def __init__(self) -> None:
        self.there: dict[str, Image] = {}

    def find(self, alias: str) -> Image | None:
        return next((image for image in self.there.values() if alias in image.aliases), None)

    def all(self) -> tuple[Image, ...]:
        return tuple(self.there.values())

    def import_split(self, metadata: bytes, rootfs: BinaryIO, alias: str, properties: Mapping[str, str]) -> str:
        fingerprint = alias.removeprefix(PREFIX)
        self.there[fingerprint] = Image(fingerprint, {}, aliases=(alias,), filename=alias)
        return fingerprint

    def delete(self, fingerprint: str) -> None:
        self.there.pop(fingerprint, None)


class RootImagesTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.base = Path(self.useFixture(fixtures.TempDir()).path)
        self.images = FakeImages()
        self.useFixture(fixtures.MonkeyPatch("containerhost.images.rebuild.rebuild", self.rebuild))
        self.begun, self.end = threading.Event(), threading.Event()
        self.addCleanup(self.end.set)
        self.containers: list[Any] = []
        self.root_images = self.of_timeout(SECONDS)

    def of_timeout(self, timeout: float) -> RootImages:
        return RootImages(self.images, self.base / "state", timeout)  # type: ignore[arg-type]  # a fake

    def rebuild(self, content: BinaryIO, target: BinaryIO, limit: int, timeout: int) -> Any:
        if content.read(8).endswith(b"slow"):
            self.begun.set()
            self.end.wait(SECONDS)
        return SimpleNamespace(architecture="x86_64")

    def disk(self, content: str) -> Path:
        file = self.base / content
        file.write_bytes(b"hsqs" + content.encode() + bytes(4096))
        return file

    def alias(self, disk: Path) -> str:
        return PREFIX + root_images.digest(disk)[:32]

    def held(self, disk: Path, of: RootImages | None = None) -> Any:
        return (of or self.root_images).held(disk, Origin(self.base), self.base / "home", 1 << 30)

    def release(self, fingerprint: str | None = None) -> None:
        self.root_images.release(fingerprint, lambda: self.containers)

    @contextlib.contextmanager
    def importing(self, disk: Path) -> Iterator[None]:
        def work() -> None:
            with self.held(disk):
                pass

        thread = threading.Thread(target=work)
        thread.start()
        self.assertTrue(self.begun.wait(SECONDS))
        yield
        self.end.set()
        thread.join()

    def test_a_slow_import_keeps_only_those_waiting_who_want_the_same_image(self) -> None:
        slow, quick = self.disk("slow"), self.disk("quick")
        with self.importing(slow):
            with self.held(quick) as fingerprint:
                pass
            self.assertEqual([fingerprint], list(self.images.there))
            self.release(fingerprint)
            self.assertEqual({}, self.images.there)
            error = self.assertRaises(Busy, self.held(slow, self.of_timeout(0.1)).__enter__)
            self.assertIn(self.alias(slow), str(error))
        with self.held(slow):
            self.assertIsNotNone(self.images.find(self.alias(slow)))

    def test_an_image_stays_while_a_container_is_made_of_it_and_goes_with_a_later_release(self) -> None:
        with self.held(self.disk("one")) as fingerprint, self.held(self.disk("one"), self.of_timeout(0.1)) as again:
            self.assertEqual(fingerprint, again)
            self.release(fingerprint)
            self.assertEqual([fingerprint], list(self.images.there))
        self.release()
        self.assertEqual({}, self.images.there)

    def test_images_of_containers_and_of_others_stay(self) -> None:
        with self.held(self.disk("one")) as fingerprint:
            self.containers.append(SimpleNamespace(labels={IMAGE_LABEL: fingerprint}))
        self.images.there |= {"a": Image("a", {}, aliases=("debian",)), "b": Image("b", {}), "old": Image("old", {})}
        self.release("old")
        self.assertEqual({fingerprint, "a", "b"}, set(self.images.there))

    def test_what_a_killed_import_left_goes(self) -> None:
        self.images.there["a"] = Image("a", {}, filename=f"{PREFIX}1")
        self.release()
        self.assertEqual({}, self.images.there)

    def test_an_image_that_is_removed_before_its_use_is_told_as_that(self) -> None:
        self.useFixture(fixtures.MonkeyPatch("tests.unit.lxdone.test_root_images.FakeImages.import_split",
                                             lambda *arguments: ""))
        self.assertRaises(EngineNotFound, self.held(self.disk("one")).__enter__)


class RemovalTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.calls = mock.MagicMock()
        self.vmm = Vmm(*(getattr(self.calls, part) for part in (
            "options", "engine", "allocator", "snapshots", "root_images", "writeback", "disks", "contexts", "commands",
            "consoles", "host", "ids", "limit_interface", "transfers", "connect")))
        self.calls.allocator.release.return_value = ()

    def test_the_image_is_the_last_that_a_vm_lets_go(self) -> None:
        self.calls.engine.container.side_effect = EngineNotFound("one-1")
        self.vmm.remove(1)
        self.assertEqual("root_images.release", self.calls.mock_calls[-1][0])

    def test_an_image_that_is_removed_meanwhile_is_imported_anew(self) -> None:
        held = self.calls.root_images.held
        held.side_effect = [EngineNotFound("gone"), held.return_value]
        self.calls.options.datastores, self.calls.options.unpacked_limit = "/ds", 1
        self.calls.engine.container.side_effect = EngineNotFound("not there yet")
        self.vmm._create(SPEC, Path("disk"), Path("home"), machine())
        image = held.return_value.__enter__.return_value
        self.calls.engine.create.assert_called_once_with(
            resources.with_document(dataclasses.replace(SPEC, image=image, labels={IMAGE_LABEL: image})))

    def test_root_that_is_too_small_names_size(self) -> None:
        spec = SimpleNamespace(root=SimpleNamespace(size=70 << 20))

        def failing(words: str) -> None:
            with naming_size(machine(), spec):  # type: ignore[arg-type]  # the spec is a stand-in
                raise EngineError(words)

        for words in ("btrfs qgroup limit: Disk quota exceeded", "idmapped storage: Failed to change ownership of x"):
            error = str(self.assertRaises(DriverError, failing, words))
            self.assertTrue(error.startswith("the root may have 70 MiB"), error)
            self.assertIn("give disk 0 a larger SIZE", error)
            self.assertIn(words, error)
        self.assertRaises(EngineError, failing, "the daemon is away")
