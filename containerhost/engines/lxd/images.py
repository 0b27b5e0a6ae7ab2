# SPDX-License-Identifier: Apache-2.0
"""Find, import and remove images of LXD's image store. Imports are streamed; images are never entirely in memory.

Formats: LXD's image-format document (split: a metadata tarball, and a root file system as a tarball) and its rest-api
for ``POST /1.0/images``. What is imported was written by :mod:`containerhost.images`, never by a tenant.
"""

import hashlib
import io
from collections.abc import Mapping
from typing import Any, BinaryIO

from containerhost.engines.capabilities import Image
from containerhost.engines.lxd.client import LxdClient
from containerhost.engines.lxd.states import moment
from containerhost.errors import EngineConflict, EngineNotFound
from containerhost.rollback import Rollback

PIECE = 1 << 20  # bytes


class Images:
    def __init__(self, client: LxdClient) -> None:
        self._client = client

    def find(self, alias: str) -> Image | None:
        try:
            return described(self._client.image(self._client.image_alias(alias)["target"]))
        except EngineNotFound:
            return None

    def all(self) -> tuple[Image, ...]:
        return tuple(sorted(map(described, self._client.images()), key=lambda image: image.fingerprint))

    def having(self, name: str) -> tuple[Image, ...]:
        return tuple(image for image in self.all() if name in image.properties)

    def unnamed(self, prefix: str) -> tuple[Image, ...]:
        return tuple(image for image in self.all() if image.filename.startswith(prefix) and not image.aliases)

    def import_split(self, metadata: bytes, rootfs: BinaryIO, alias: str, properties: Mapping[str, str]) -> str:
        # Imported where it is used, because it would delay every command of OpenNebula.
        from requests_toolbelt.multipart.encoder import MultipartEncoder  # noqa: PLC0415  (only for uploads)

        rootfs.seek(0)
        body = MultipartEncoder([("metadata", ("metadata.tar", io.BytesIO(metadata), "application/octet-stream")),
                                 ("rootfs", (alias, rootfs, "application/octet-stream"))])
        with Rollback(f"import of image {alias}") as undo:
            try:
                found = self._client.upload_image(body, {"Content-Type": body.content_type, "X-LXD-public": "0"})
                undo.on_error("its file", self.delete, found)
            except EngineConflict:
                # An image of the same content exists, with another alias or without one after an interrupted import.
                found = fingerprint(rootfs, metadata)
            if properties:
                self._client.patch_image(found, {"properties": dict(properties)})
            self._name(alias, found)
        return found

    def delete(self, fingerprint: str) -> None:
        try:
            self._client.delete_image(fingerprint)
        except EngineNotFound:
            return

    def _name(self, alias: str, fingerprint: str) -> None:
        """Set ``alias`` to this image."""
        try:
            self._client.create_image_alias(alias, fingerprint)
        except EngineConflict:
            if self._client.image_alias(alias)["target"] != fingerprint:
                self._client.delete_image_alias(alias)
                self._client.create_image_alias(alias, fingerprint)


def fingerprint(rootfs: BinaryIO, metadata: bytes) -> str:
    """Compute the fingerprint that LXD gives a split image."""
    digest = hashlib.sha256(metadata)
    rootfs.seek(0)
    while piece := rootfs.read(PIECE):
        digest.update(piece)
    return digest.hexdigest()


def described(image: Mapping[str, Any]) -> Image:
    return Image(
        fingerprint=image["fingerprint"],
        properties=image.get("properties") or {},
        aliases=tuple(alias["name"] for alias in image.get("aliases") or ()),
        filename=image.get("filename", ""),
        size=image.get("size", 0),
        architecture=image.get("architecture", ""),
        used=moment(image.get("last_used_at")) or moment(image.get("uploaded_at")),
    )
