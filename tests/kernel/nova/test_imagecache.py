# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import fixtures
import nova.conf
import testtools
from oslo_config import fixture as config_fixture

from containerhost.engines.capabilities import Image
from nova_lxd_ext.image.imagecache import ImageCache
from nova_lxd_ext.image.images import BOOTING, Cache
from tests.unit.containerhost.images import imagekit
from tests.unit.nova import records
from tests.unit.nova.imagestores import Store
from tests.unit.nova.test_imagecache import NOW, OTHER, KnownGlance, image


class ImageCacheTest(testtools.TestCase):
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

    def test_fetches_once(self) -> None:
        self.assertEqual([True, False], [self.cache.fetch(None, records.IMAGE) for _ in range(2)])
        self.assertEqual(1, self.glance.downloads)

    def test_spares_what_a_boot_just_asked_for(self) -> None:
        self.cache.fetch(None, OTHER)
        self.store.images.clear()
        self.add(image(OTHER))
        self.cache.manage([])
        self.assertEqual(1, len(self.store.images))
        self.time = BOOTING
        self.cache.manage([])
        self.assertEqual({}, self.store.images)
