# SPDX-License-Identifier: Apache-2.0


from nova_lxd_ext.image.images import BOOTING
from tests.unit.nova import records
from tests.unit.nova.test_imagecache import OTHER, ImageCacheCase, image


class ImageCacheTest(ImageCacheCase):
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
