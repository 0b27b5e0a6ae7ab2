"""LXD's image store: find, import and remove images. Imports are streamed; no image is ever whole in memory.

Formats: LXD's image-format document (unified: one tarball with metadata.yaml and rootfs/; split: a metadata tarball and
a root file system as tarball or squashfs) and its rest-api for ``POST /1.0/images``.
"""

import dataclasses
import datetime
import hashlib
import io
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from containerhost.engines.lxd.client import LxdClient
from containerhost.engines.lxd.engine import moment
from containerhost.errors import EngineConflict, EngineNotFound
from containerhost.rollback import Rollback


@dataclasses.dataclass(frozen=True)
class Image:
    """:ivar fingerprint: SHA-256 of its file, or of metadata and root file system one after the other
    :ivar filename: what the file was called when it was imported; here the alias it was meant for
    :ivar size: bytes, compressed as imported
    :ivar used: when a container was last made of it, else when it was imported
    """

    fingerprint: str
    properties: Mapping[str, str]
    aliases: tuple[str, ...] = ()
    filename: str = ""
    size: int = 0
    architecture: str = ""
    used: datetime.datetime | None = None


class Images:
    def __init__(self, client: LxdClient) -> None:
        self._client = client

    def find(self, alias: str) -> Image | None:
        try:
            return described(self._client.image(self._client.image_alias(alias)["target"]))
        except EngineNotFound:
            return None

    def having(self, name: str) -> tuple[Image, ...]:
        """All images with a property ``name``, by fingerprint."""
        images = (described(image) for image in self._client.images())
        return tuple(sorted((image for image in images if name in image.properties),
                            key=lambda image: image.fingerprint))

    def unnamed(self, prefix: str) -> tuple[Image, ...]:
        """Images without an alias that were meant for one that begins with ``prefix``: what killed imports left."""
        images = (described(image) for image in self._client.images())
        return tuple(sorted((image for image in images if image.filename.startswith(prefix) and not image.aliases),
                            key=lambda image: image.fingerprint))

    def import_unified(self, path: Path, alias: str, properties: Mapping[str, str]) -> str:
        """Import a unified tarball and return its fingerprint.

        :param properties: kept beside those of its metadata.yaml
        """
        with open(path, "rb") as file:
            reader = Hashing(file, hashlib.sha256())
            return self._import(reader, {"Content-Type": "application/octet-stream", "X-LXD-filename": alias},
                                reader, alias, properties)

    def import_split(self, metadata: bytes, rootfs: Path, alias: str, properties: Mapping[str, str]) -> str:
        """Import a root file system with a metadata tarball made for it, and return the fingerprint of both."""
        with open(rootfs, "rb") as file:
            reader = Hashing(file, hashlib.sha256(metadata))
            # What is seldom used is imported where it is: every command of OpenNebula's would wait for it.
            from requests_toolbelt.multipart.encoder import MultipartEncoder  # noqa: PLC0415  (for uploads alone)

            body = MultipartEncoder([("metadata", ("metadata.tar", io.BytesIO(metadata), "application/octet-stream")),
                                     ("rootfs", (alias, reader, "application/octet-stream"))])
            return self._import(body, {"Content-Type": body.content_type}, reader, alias, properties)

    def delete(self, fingerprint: str) -> None:
        """Containers made from it live on; nothing happens when it is gone already."""
        try:
            self._client.delete_image(fingerprint)
        except EngineNotFound:
            return

    def _import(self, body: Any, headers: Mapping[str, str], reader: "Hashing", alias: str,
                properties: Mapping[str, str]) -> str:
        with Rollback(f"import of image {alias}") as undo:
            try:
                fingerprint = self._client.upload_image(body, {**headers, "X-LXD-public": "0"})
                undo.on_error("its file", self.delete, fingerprint)
            except EngineConflict:
                # The same bytes are there, under another alias or from an import that was killed before it got one.
                fingerprint = reader.fingerprint()
            # Not with the upload: LXD 5.0.2 crashes on that when the image's metadata.yaml has no properties.
            self._client.patch_image(fingerprint, {"properties": dict(properties)})
            self._name(alias, fingerprint)
        return fingerprint

    def _name(self, alias: str, fingerprint: str) -> None:
        """Let ``alias`` mean this image, whatever it meant before."""
        try:
            self._client.create_image_alias(alias, fingerprint)
        except EngineConflict:
            if self._client.image_alias(alias)["target"] != fingerprint:
                self._client.delete_image_alias(alias)
                self._client.create_image_alias(alias, fingerprint)


class Hashing:
    """A file that is hashed while it is read, once, from its beginning to its end."""

    def __init__(self, file: BinaryIO, digest: "hashlib._Hash") -> None:
        self._file = file
        self._digest = digest
        self._size = os.fstat(file.fileno()).st_size

    @property
    def len(self) -> int:
        """Bytes that are still to be read: requests asks once, its toolbelt reads on until there are none."""
        return self._size - self._file.tell()

    def __iter__(self) -> Iterator[bytes]:
        return iter(lambda: self.read(1 << 16), b"")

    def read(self, size: int = -1) -> bytes:
        piece = self._file.read(size)
        self._digest.update(piece)
        return piece

    def fingerprint(self) -> str:
        """:returns: hexadecimal, of everything; what the receiver did not want to read any more is read here"""
        while self.read(1 << 20):
            pass
        return self._digest.hexdigest()


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
