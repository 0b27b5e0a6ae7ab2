# SPDX-License-Identifier: Apache-2.0
"""The image cache on a real image store: every format boots, nothing is fetched twice, nothing is left behind."""

import hashlib
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import fixtures
import testtools
from nova import exception
from nova.objects.image_meta import ImageMeta
from oslo_utils import units, uuidutils

from containerhost.engines.lxd.images import Images
from containerhost.engines.spec import ContainerSpec, Cpu, Memory, RootDisk
from nova_lxd_ext.image import images
from tests import levels
from tests.functional.lxd import POOL, Lxd
from tests.unit.containerhost.images import imagekit


class Glance:
    """:param pause: seconds before the last byte arrives"""

    def __init__(self, path: Path, pause: float = 0.0) -> None:
        self.path = path
        self.pause = pause
        self.downloads = 0

    def download(self, context: Any, id_or_uri: str, data: Any = None, dest_path: Any = None,
                 trusted_certs: Any = None) -> None:
        self.downloads += 1
        content = self.path.read_bytes()
        with open(dest_path, "wb") as file:
            file.write(content[:-1])
            file.flush()
            time.sleep(self.pause)
            file.write(content[-1:])


@levels.exhaustive("functional.containerhost.test_lxd_images has every format", tests=("test_every_format_boots",))
class TestCache(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.lxd = self.useFixture(Lxd())
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.addCleanup(self._delete_images)

    def _delete_images(self) -> None:
        for image in self.lxd.store.having(images.IMAGE_ID):
            self.lxd.store.delete(image.fingerprint)

    def cache(self, glance: Glance) -> images.Cache:
        # A separate client, like that of another process.
        return images.Cache(Images(self.lxd.daemon.client()), glance, self.directory,
                            lambda: self.lxd.engine.server().architectures)

    def meta(self, path: Path, image_id: str | None = None) -> ImageMeta:
        checksum = hashlib.md5(path.read_bytes()).hexdigest()
        return ImageMeta.from_dict({"id": image_id or uuidutils.generate_uuid(), "checksum": checksum})

    def test_every_format_boots(self) -> None:
        for form, path in self.lxd.images.items():
            glance = Glance(path)
            meta = self.meta(path)
            fingerprint = self.cache(glance).ensure(None, meta, 1)
            self.assertEqual((fingerprint, 1), (self.cache(glance).ensure(None, meta, 1), glance.downloads), form)
            self.boot(fingerprint)
            stored = self.lxd.store.find(f"nova-{meta.id}")
            self.assertGreater(int(stored.properties[images.UNPACKED]), path.stat().st_size, form)
            self.assertEqual([], list(self.directory.glob("*.part")), form)

    def boot(self, fingerprint: str) -> None:
        self.lxd.engine.create(ContainerSpec(name="c1", image=fingerprint, cpu=Cpu(1), memory=Memory(128 * units.Mi),
                                             root=RootDisk(POOL)))
        self.lxd.engine.start("c1")
        self.lxd.engine.delete("c1")

    def test_same_bytes_under_two_ids(self) -> None:
        """The engine keeps them once; each id finds them, and one can go without the other."""
        path = self.lxd.images["unified"]
        first, second = (self.meta(path) for _ in range(2))
        glance = Glance(path)
        self.assertEqual(self.cache(glance).ensure(None, first, 1), self.cache(glance).ensure(None, second, 1))
        for meta in (first, second):
            self.assertIsNotNone(self.lxd.store.find(f"nova-{meta.id}"))

    @levels.exhaustive("test_killed kills a boot while its image is imported")
    def test_killed_while_the_engine_imports(self) -> None:
        """Kill it at many moments; the next start leaves no file and no image without a record."""
        path = self.lxd.images["tar.xz"]
        for moment in (0.0, 0.02, 0.05, 0.1, 0.2):
            meta = self.meta(path)
            process = multiprocessing.get_context("fork").Process(
                target=self.cache(Glance(path)).ensure, args=(None, meta, 1))
            process.start()
            while not list(self.directory.glob("*.part")) and process.is_alive():
                time.sleep(0.001)
            time.sleep(moment)
            os.kill(process.pid or 0, signal.SIGKILL)
            process.join(30)
            self.settled()
            self.cache(Glance(path)).purge()
            self.assertEqual([], list(self.directory.glob("*.part")), moment)
            self.assertEqual((), self.lxd.store.unnamed(""), moment)
            self.boot(self.cache(Glance(path)).ensure(None, meta, 1))

    def settled(self) -> None:
        """Wait until the engine has no operation left: it continues them without the client."""
        end = time.monotonic() + 30
        while self.busy() and time.monotonic() < end:
            time.sleep(0.05)

    def busy(self) -> bool:
        return any(operation["status"] == "Running" for operation in self.lxd.engine.client.operations())

    def test_metadata_without_properties(self) -> None:
        """LXD 5.0.2 crashes if properties come with the upload: no tenant may bring the host's daemon down."""
        path = self.directory / "image"
        path.write_bytes(imagekit.unified(b"architecture: x86_64\ncreation_date: 1\n"))
        self.cache(Glance(path)).ensure(None, self.meta(path), 1)
        self.assertEqual("lxd", self.lxd.engine.server().name)

    def test_refused_images_leave_nothing(self) -> None:
        before = {image["fingerprint"] for image in self.lxd.engine.client.images()}
        content = self.lxd.images["tar.gz"].read_bytes()
        broken = self.directory / "broken"
        broken.write_bytes(content[:len(content) // 2])
        self.assertRaises(exception.ImageUnacceptable, self.cache(Glance(broken)).ensure, None, self.meta(broken), 1)
        large = self.directory / "large"
        large.write_bytes(imagekit.large_unified(units.Gi))
        self.assertRaises(exception.FlavorDiskSmallerThanImage, self.cache(Glance(large)).ensure, None,
                          self.meta(large), 1)
        self.assertEqual(before, {image["fingerprint"] for image in self.lxd.engine.client.images()})
        self.assertEqual([], list(self.directory.glob("*.part")))
