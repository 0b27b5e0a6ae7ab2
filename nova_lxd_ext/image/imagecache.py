# SPDX-License-Identifier: Apache-2.0
"""Maintain the image cache: fetch images ahead of boots, and remove old unused ones."""

import datetime
from collections.abc import Callable, Iterable
from typing import Any

from nova import objects
from nova.image.glance import API as Glance
from oslo_config import cfg
from oslo_log import log as logging

from containerhost import errors
from containerhost.engines.capabilities import Image
from nova_lxd_ext.image.images import Cache, ids_of

LOG = logging.getLogger(__name__)


class ImageCache:
    """Fetch images before boots, and remove those that no server has used for a long time.

    :param now: returns the current time with its zone
    """

    def __init__(self, conf: cfg.ConfigOpts, cache: Cache, glance: Glance,
                 now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC)) -> None:
        self._conf = conf
        self._cache = cache
        self._glance = glance
        self._now = now

    def fetch(self, context: Any, image_id: str) -> bool:
        """Fetch an image before a boot needs it.

        :raises ImageUnacceptable: no server could boot from it on this host
        """
        image = objects.ImageMeta.from_image_ref(context, self._glance, image_id)
        if self._cache.has(image):
            return False
        self._cache.ensure(context, image, 0)
        return True

    def manage(self, instances: Iterable[objects.Instance]) -> None:
        """Remove images of no server that have been unused for as long as nova's options require."""
        if not self._conf.image_cache.remove_unused_base_images:
            return
        limit = datetime.timedelta(seconds=self._conf.image_cache.remove_unused_original_minimum_age_seconds)
        in_use = {instance.image_ref for instance in instances}
        for image in unused(self._cache.stored(), in_use, self._now() - limit):
            try:
                removed = self._cache.remove(image)
            except errors.EngineError as error:
                LOG.warning("Image %s could not be removed from the cache: %s", image.fingerprint, error)
            else:
                LOG.info("Image %s %s", sorted(ids_of(image)),
                         "was unused and is removed from the cache" if removed else "is being booted: it stays")


def unused(images: Iterable[Image], in_use: Iterable[str | None], before: datetime.datetime) -> tuple[Image, ...]:
    """Return the images of no server that have not been used since ``before``.

    :param in_use: Glance's ids of the servers' images
    """
    kept = frozenset(in_use)
    return tuple(image for image in images
                 if not ids_of(image) & kept and image.used is not None and image.used < before)
