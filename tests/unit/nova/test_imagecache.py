# SPDX-License-Identifier: Apache-2.0
import dataclasses
import datetime
from pathlib import Path
from typing import Any

import fixtures
import nova.conf
import testtools
from oslo_config import fixture as config_fixture

from containerhost import errors
from containerhost.engines.capabilities import Image
from nova_lxd_ext.image.imagecache import ImageCache, unused
from nova_lxd_ext.image.images import IMAGE_ID, Cache
from tests.unit.containerhost.images import imagekit
from tests.unit.nova import records
from tests.unit.nova.imagestores import Glance, Store

NOW = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
OLD, NEW = NOW - datetime.timedelta(days=2), NOW - datetime.timedelta(hours=2)
OTHER = "22222222-4e14-4e4c-a73d-069cbf4541e6"


def image(*ids: str, used: datetime.datetime | None = OLD) -> Image:
    return Image(f"of-{ids}", {IMAGE_ID: ids[0]}, tuple(f"nova-{image_id}" for image_id in ids), used=used)


class KnownGlance(Glance):
    def get(self, context: Any, image_id: str, **options: Any) -> dict[str, Any]:
        return {"id": image_id, "status": "active"}


class UnusedTest(testtools.TestCase):
    def test_what_no_server_was_made_of_and_nobody_used_lately(self) -> None:
        table = [
            ("old", image(OTHER), True),
            ("new", image(OTHER, used=NEW), False),
            ("a server's", image(records.IMAGE), False),
            ("a server's under its second id", image(OTHER, records.IMAGE), False),
            ("of unknown age", image(OTHER, used=None), False),
        ]
        for title, one, expected in table:
            with self.subTest(title):
                found = unused([one], [records.IMAGE, None], NOW - datetime.timedelta(days=1))
                self.assertEqual(expected, found == (one,))


class ImageCacheCase(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.options = self.useFixture(config_fixture.Config(nova.conf.CONF))
        self.store, self.time = Store(), 0.0
        self.store.having = lambda name: tuple(self.store.images.values())
        self.glance = KnownGlance(imagekit.unified())
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.images = Cache(self.store, self.glance, directory, lambda: ("x86_64",), clock=lambda: self.time)
        self.cache = ImageCache(nova.conf.CONF, self.images, self.glance, now=lambda: NOW)

    def add(self, one: Image) -> None:
        self.store.images[one.fingerprint] = one


class ImageCacheTest(ImageCacheCase):
    def test_image_that_somebody_else_gave_a_name_stays(self) -> None:
        one = image(OTHER)
        shared = dataclasses.replace(one, aliases=(*one.aliases, "busybox"))
        self.add(shared)
        self.assertFalse(self.images.remove(shared))
        self.assertIn(shared.fingerprint, self.store.images)

    def test_removes_the_unused(self) -> None:
        for one in (image(OTHER), image(records.IMAGE), image("33333333-4e14-4e4c-a73d-069cbf4541e6", used=NEW)):
            self.add(one)
        self.cache.manage([records.instance()])
        self.assertEqual(2, len(self.store.images))
        self.options.config(remove_unused_original_minimum_age_seconds=60, group="image_cache")
        self.cache.manage([records.instance()])
        self.assertEqual([image(records.IMAGE)], list(self.store.images.values()))

    def test_removes_nothing_where_the_operator_says_so(self) -> None:
        self.options.config(remove_unused_base_images=False, group="image_cache")
        self.add(image(OTHER))
        self.cache.manage([])
        self.assertEqual(1, len(self.store.images))

    def test_one_image_that_cannot_go_does_not_keep_the_others(self) -> None:
        def delete(fingerprint: str) -> None:
            if OTHER in fingerprint:
                raise errors.EngineError("busy")
            del self.store.images[fingerprint]
        self.store.delete = delete
        self.add(image(OTHER))
        self.add(image(records.IMAGE))
        self.cache.manage([])
        self.assertEqual([image(OTHER)], list(self.store.images.values()))
