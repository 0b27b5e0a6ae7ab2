# SPDX-License-Identifier: Apache-2.0
"""LXD's image store and Glance, as the image cache sees them."""

import dataclasses
import hashlib
from pathlib import Path

from containerhost.engines.capabilities import Image


class Store:
    """LXD's image store as the cache sees it; the real one is under it in the functional tests."""

    def __init__(self):
        self.images = {}

    def find(self, alias):
        return next((image for image in self.images.values() if alias in image.aliases), None)

    def unnamed(self, prefix):
        return tuple(image for image in self.images.values() if image.filename.startswith(prefix) and not image.aliases)

    def import_split(self, metadata, rootfs, alias, properties):
        rootfs.seek(0)
        return self._add(metadata + rootfs.read(), alias, properties)

    def delete(self, fingerprint):
        del self.images[fingerprint]

    def _add(self, content, alias, properties):
        fingerprint = hashlib.sha256(content).hexdigest()
        for key, image in self.images.items():
            self.images[key] = dataclasses.replace(image, aliases=tuple(set(image.aliases) - {alias}))
        before = self.images.get(fingerprint, Image(fingerprint, {}))
        self.images[fingerprint] = dataclasses.replace(before, properties={**before.properties, **properties},
                                                       aliases=(*before.aliases, alias))
        return fingerprint


class Glance:
    def __init__(self, content, wait=lambda: None):
        self.content = content
        self.wait = wait
        self.downloads = 0

    def download(self, context, id_or_uri, data=None, dest_path=None, trusted_certs=None):
        self.downloads += 1
        Path(dest_path).write_bytes(self.content[:100])
        self.wait()
        Path(dest_path).write_bytes(self.content)
