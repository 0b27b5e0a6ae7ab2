# SPDX-License-Identifier: Apache-2.0
"""Images of every format through LXD's store into a running container."""

import io
import platform
import threading

from containerhost import errors
from containerhost.engines.capabilities import Image
from containerhost.engines.contract import Status
from containerhost.images import metadata
from tests.functional.containerhost.base import LxdTestCase

METADATA = metadata.tarball(platform.machine())


class TestImages(LxdTestCase):
    def setUp(self):
        super().setUp()
        self.store = self.lxd.store
        self.addCleanup(self._forget)

    def _forget(self):
        for image in self.store.having("test"):
            self.store.delete(image.fingerprint)

    def _import(self, name, alias="a", **properties):
        properties = {"test": "yes", **properties}
        with self.lxd.images[name].open("rb") as rootfs:
            return self.store.import_split(METADATA, rootfs, alias, properties)

    def test_every_format_becomes_a_running_container(self):
        for name in self.lxd.images.keys() - {"unified"}:
            fingerprint = self._import(name, name.replace(".", "-"))
            self.running("c1", image=fingerprint)
            self.assertEqual(Status.RUNNING, self.engine.container("c1").status)
            self.assertEqual((0, ""), self.inside("c1", "true"))
            self.engine.delete("c1")

    def test_what_the_store_remembers(self):
        fingerprint = self._import("tar.gz", "nova-1", size="5", odd="a=b&c d/ü")
        image = self.store.find("nova-1")
        self.assertEqual((fingerprint, ("nova-1",), "x86_64"), (image.fingerprint, image.aliases, image.architecture))
        self.assertEqual(("yes", "5", "a=b&c d/ü"), tuple(image.properties[key] for key in ("test", "size", "odd")))
        self.assertEqual((image,), self.store.having("odd"))
        self.assertIsNone(self.store.find("nova-2"))

    def test_the_same_bytes_under_another_name(self):
        first = self._import("tar.gz", "nova-1")
        self.assertEqual(first, self._import("tar.gz", "nova-2", more="x"))
        self.assertEqual({"nova-1", "nova-2"}, set(self.store.find("nova-2").aliases))
        self.assertEqual(("yes", "x"), tuple(self.store.find("nova-1").properties[key] for key in ("test", "more")))
        self.assertEqual(first, self._import("tar.gz", "nova-1"))

    def test_an_import_that_was_killed_before_it_had_a_name(self):
        first = self._import("squashfs", "nova-1")
        self.engine.client.delete_image_alias("nova-1")
        self.assertIsNone(self.store.find("nova-1"))
        self.assertEqual(first, self._import("squashfs", "nova-1"))
        self.assertIsInstance(self.store.find("nova-1"), Image)

    def test_a_name_moves_to_the_new_image(self):
        self._import("tar.gz", "nova-1")
        second = self._import("tar.xz", "nova-1")
        self.assertEqual(second, self.store.find("nova-1").fingerprint)

    def test_two_imports_of_one_image_at_once(self):
        results = []

        def work():
            try:
                results.append(self._import("tar.zst", "nova-1"))
            except errors.EngineError as error:
                results.append(error)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual({self.store.find("nova-1").fingerprint}, set(results))

    def test_rubbish_leaves_nothing(self):
        rubbish = b"\0" * 100_000
        before = self.engine.client.images()
        self.assertRaises(errors.EngineError, self.store.import_split, rubbish, io.BytesIO(rubbish), "nova-1",
                          {"test": "yes"})
        self.assertEqual((before, None), (self.engine.client.images(), self.store.find("nova-1")))

    def test_delete_is_repeatable(self):
        fingerprint = self._import("tar.gz", "nova-1")
        self.store.delete(fingerprint)
        self.store.delete(fingerprint)
        self.assertIsNone(self.store.find("nova-1"))
