# SPDX-License-Identifier: Apache-2.0
import errno
import gzip
import hashlib
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import fixtures
import testtools
from nova import exception
from nova.objects.image_meta import ImageMeta
from oslo_utils import units

from containerhost.engines.capabilities import Image
from containerhost.errors import StorageFull
from nova_lxd_ext.image import images
from tests.unit.containerhost.images import imagekit
from tests.unit.nova.imagestores import Glance, Store

IMAGE_ID = "155d900f-4e14-4e4c-a73d-069cbf4541e6"


class CacheCase(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path) / "made-when-needed"
        self.store = Store()

    def cache(self, glance, architectures=("x86_64", "i686")):
        return images.Cache(self.store, glance, self.directory, lambda: architectures)

    def left_over(self):
        return [path.name for path in self.directory.iterdir() if images.PARTIAL in path.name]


def meta(image_id=IMAGE_ID, architecture=None, checksum=None):
    properties = {"hw_architecture": architecture} if architecture else {}
    return ImageMeta.from_dict({"id": image_id, "checksum": checksum, "properties": properties})


def md5(content):
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


class TestEnsure(CacheCase):
    def test_every_format_reaches_the_store(self):
        squashfs = imagekit.squashfs(Path(self.useFixture(fixtures.TempDir()).path))
        for name, content in (("unified", gzip.compress(imagekit.unified())),
                              ("rootfs", gzip.compress(imagekit.rootfs())), ("squashfs", squashfs)):
            self.store.images.clear()
            fingerprint = self.cache(Glance(content)).ensure(None, meta(), 1)
            image = self.store.find(f"nova-{IMAGE_ID}")
            self.assertEqual(fingerprint, image.fingerprint)
            self.assertEqual((IMAGE_ID, name, "x86_64"), tuple(
                image.properties[f"nova.{key}"] for key in ("image_id", "format", "architecture")))
            self.assertEqual([], self.left_over())

    def test_fetched_once(self):
        glance = Glance(imagekit.unified())
        first = self.cache(glance).ensure(None, meta(), 1)
        again = self.cache(glance).ensure(None, meta(), 0)
        self.assertEqual((first, 1), (again, glance.downloads))

    def test_same_root_has_the_same_fingerprint(self):
        cache = self.cache(Glance(imagekit.rootfs()))
        other = "22222222-4e14-4e4c-a73d-069cbf4541e6"
        self.assertEqual(cache.ensure(None, meta(), 1), cache.ensure(None, meta(other), 1))

    def test_a_stranger_under_the_name_does_not_count(self):
        self.store.images["f"] = Image("f", {"os": "alpine"}, (f"nova-{IMAGE_ID}",))
        glance = Glance(imagekit.unified())
        self.cache(glance).ensure(None, meta(), 1)
        self.assertEqual(1, glance.downloads)

    def test_id_that_glance_gave_to_another_image_is_fetched_again(self):
        """Glance forgets the ids of deleted images when its database is purged, and lets a tenant choose an id."""
        mine, theirs = gzip.compress(imagekit.unified()), gzip.compress(imagekit.rootfs())
        first = self.cache(Glance(mine)).ensure(None, meta(checksum=md5(mine)), 1)
        cache = self.cache(Glance(theirs))
        self.assertEqual([True, True, False], [cache.has(meta(checksum=checksum)) for checksum in
                                               (md5(mine), None, md5(theirs))])
        self.assertNotEqual(first, cache.ensure(None, meta(checksum=md5(theirs)), 1))
        self.assertTrue(cache.has(meta(checksum=md5(theirs))))

    def test_images_with_the_same_root_are_fetched_once_each(self):
        other = "22222222-4e14-4e4c-a73d-069cbf4541e6"
        for image_id, content in ((IMAGE_ID, imagekit.rootfs()), (other, gzip.compress(imagekit.rootfs()))):
            self.cache(Glance(content)).ensure(None, meta(image_id, checksum=md5(content)), 1)
        self.assertTrue(self.cache(None).has(meta(checksum=md5(imagekit.rootfs()))))

    def test_image_that_an_earlier_release_imported_unrebuilt_is_fetched_again(self):
        old = {"nova.image_id": IMAGE_ID, "nova.unpacked_bytes": "1", "nova.architecture": "x86_64"}
        self.store.images["f"] = Image("f", old, (f"nova-{IMAGE_ID}",))
        glance = Glance(imagekit.unified())
        cache = self.cache(glance)
        self.assertFalse(cache.has(meta()))
        self.assertNotEqual("f", cache.ensure(None, meta(), 1))
        self.assertEqual(1, glance.downloads)


class TestRefusal(CacheCase):
    def refused(self, error, words, content, image_meta, root_gb=1, **kwargs):
        found = self.assertRaises(error, self.cache(Glance(content), **kwargs).ensure, None, image_meta, root_gb)
        self.assertIn(words, str(found))
        self.assertEqual(({}, []), (self.store.images, self.left_over()))

    def test_nothing_is_left(self):
        whole = imagekit.unified()
        arm = imagekit.unified(b"architecture: aarch64\ncreation_date: 1\n")
        bad = exception.ImageUnacceptable
        for words, content, image_meta in (
                ("damaged", gzip.compress(whole)[:-20], meta()),
                ("arrived damaged", whole, meta(checksum=hashlib.md5(b"other").hexdigest())),
                ("architecture is aarch64; this host runs x86_64, i686", arm, meta()),
                ("hw_architecture is aarch64, but the metadata.yaml in it says x86_64", whole,
                 meta(architecture="aarch64")),
                ("architecture is ppc64le", imagekit.rootfs(), meta(architecture="ppc64le")),
                ("QCOW2", b"QFI\xfb" + bytes(4096), meta()),
                ("no UUID", whole, meta(image_id="../../etc/passwd"))):
            self.refused(bad, words, content, image_meta)

    def test_image_that_was_refused_is_not_read_again(self):
        content = gzip.compress(imagekit.unified())[:-20]
        glance = Glance(content)
        cache = self.cache(glance)
        for changed, fetched in ((content, 1), (content, 1), (content[:-1], 2)):
            glance.content = changed
            error = self.assertRaises(exception.ImageUnacceptable, cache.ensure, None, meta(checksum=md5(changed)), 1)
            self.assertIn("damaged", str(error))
            self.assertEqual(fetched, glance.downloads)

    def test_checksum_and_names_that_match(self):
        content = imagekit.unified(b"architecture: amd64\ncreation_date: 1\n")
        checksum = hashlib.md5(content).hexdigest()
        self.cache(Glance(content)).ensure(None, meta(architecture="x86_64", checksum=checksum), 1)

    def test_larger_than_the_root_disk(self):
        content = imagekit.large_unified(units.Gi)
        self.refused(exception.FlavorDiskSmallerThanImage, f"{units.Gi} bytes", content, meta())

    def test_the_checks_hold_for_a_cached_image_too(self):
        cache = self.cache(Glance(imagekit.large_unified(units.Gi)))
        cache.ensure(None, meta(), 2)
        self.assertRaises(exception.FlavorDiskSmallerThanImage, cache.ensure, None, meta(), 1)
        self.assertRaises(exception.ImageUnacceptable, cache.ensure, None, meta(architecture="aarch64"), 2)
        self.assertEqual(1, len(self.store.images))

    def test_no_room_for_the_download(self):
        def full(*args, **kwargs):
            raise OSError(errno.ENOSPC, "No space left on device")
        glance = Glance(b"")
        glance.download = full
        error = self.assertRaises(exception.CouldNotFetchImage, self.cache(glance).ensure, None, meta(), 1)
        self.assertIn("No space left", str(error))

    def test_store_full(self):
        def full(*args):
            raise StorageFull("the pool has no room")
        self.store.import_split = full
        self.assertRaises(StorageFull, self.cache(Glance(imagekit.unified())).ensure, None, meta(), 1)
        self.assertEqual([], self.left_over())


class TestTogether(CacheCase):
    def test_concurrent_boots_fetch_once(self):
        glance = Glance(imagekit.unified(), wait=lambda: time.sleep(0.2))
        found = []
        boots = [threading.Thread(target=lambda: found.append(self.cache(glance).ensure(None, meta(), 1)))
                 for _ in range(8)]
        for boot in boots:
            boot.start()
        for boot in boots:
            boot.join(30)
        self.assertEqual((8, 1, 1), (len(found), len(set(found)), glance.downloads))

    def test_other_images_do_not_wait(self):
        arrived = threading.Event()
        slow, quick = Glance(imagekit.unified(), wait=lambda: arrived.wait(30)), Glance(imagekit.rootfs())
        waiting = threading.Thread(target=self.cache(slow).ensure, args=(None, meta(), 1))
        waiting.start()
        self.cache(quick).ensure(None, meta("22222222-4e14-4e4c-a73d-069cbf4541e6"), 1)
        self.assertFalse(arrived.is_set() or not waiting.is_alive())
        arrived.set()
        waiting.join(30)

    def test_killed_in_the_middle(self):
        """A process that dies while it fetches leaves a file, frees the lock, and the next start removes the file."""
        process = multiprocessing.get_context("fork").Process(
            target=self.cache(Glance(imagekit.unified(), wait=lambda: time.sleep(60))).ensure, args=(None, meta(), 1))
        process.start()
        self.addCleanup(process.kill)
        part = self.directory / f"{IMAGE_ID}.part"
        while not part.exists():
            time.sleep(0.01)
        self.assertEqual((), self.cache(Glance(b"")).purge())
        self.assertTrue(part.exists(), "a download that runs is left alone")
        os.kill(process.pid, signal.SIGKILL)
        process.join(30)
        self.assertEqual((IMAGE_ID,), self.cache(Glance(b"")).purge())
        self.assertEqual([], self.left_over())
        self.cache(Glance(imagekit.unified())).ensure(None, meta(), 1)

    def test_purge_takes_nameless_images_only(self):
        self.store.images = {
            "a": Image("a", {}, (), f"nova-{IMAGE_ID}"),
            "b": Image("b", {}, ("nova-2222",), "nova-22222222-4e14-4e4c-a73d-069cbf4541e6"),
            "c": Image("c", {"os": "alpine"}, (), "alpine.tar"),
        }
        self.assertEqual((IMAGE_ID,), self.cache(Glance(b"")).purge())
        self.assertEqual({"b", "c"}, set(self.store.images))
