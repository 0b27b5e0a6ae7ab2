# SPDX-License-Identifier: Apache-2.0
"""Rebuild an archive of a container image (`docker save`) for the engine that loads it.

The image's id is the digest of its configuration, which has the digest of each layer. So the archive's own manifest
is not needed: each regular file gets a number and is identified by its digest, and a new manifest lists the parts of
the requested image, without tags.
"""

import hashlib
import json
import re
from collections.abc import Collection
from typing import Final

from containerhost.images.errors import BadImage
from containerhost.images.members import Kind, Stream, read
from containerhost.images.writer import Writer, single

CONFIG_LIMIT: Final = 8 << 20  # bytes
FILES_LIMIT: Final = 2000
ABSENT: Final = "absent"  # the name of layers that the archive lacks: the engine does not read those that it has
# Docker decompresses these before it compares a digest: gzip, bzip2, xz, zstd, and zstd's skippable frames.
PACKED: Final = re.compile(rb"\x1f\x8b|BZh|\xfd7zXZ|\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")


def rebuild(stream: Stream, target: Writer, image: str, present: Collection[str] = ()) -> None:
    """Write an archive with only the files of ``stream`` and the manifest of one image.

    The manifest comes last, so that an engine cannot load an incomplete archive.

    :param image: ``sha256:`` and the digest of its configuration
    :param present: digests of layers that the engine has, and the archive may lack
    :raises BadImage: the archive is damaged, or lacks a part of the image
    """
    wanted = image.removeprefix("sha256:")
    files: dict[str, str] = {}
    packed: set[str] = set()
    config = b""
    number = 0
    for member in read(stream):
        if member.kind is not Kind.FILE or member.segments is not None:
            continue
        number += 1
        if number > FILES_LIMIT:
            raise BadImage(f"it contains more than {FILES_LIMIT} files, the limit for an archive of an image")
        name = str(number)
        content = Content(stream, keep=member.size <= CONFIG_LIMIT)
        target.add(type(member)((name,), Kind.FILE, 0o644, 0, 0, 0, size=member.size), content.read)
        digest = content.digest.hexdigest()
        files.setdefault(digest, name)
        if PACKED.match(content.head):
            packed.add(digest)
        if digest == wanted:
            config = b"".join(content.kept)
    stream.drain()
    if wanted not in files:
        raise BadImage(f"it does not contain the image {image}")
    layers = diff_ids(config)
    for digest in layers:
        if digest.removeprefix("sha256:") in packed:
            raise BadImage(f"its layer {digest[:80]} is packed, though its configuration names it as it is unpacked")
    known = {digest.removeprefix("sha256:"): ABSENT for digest in present} | files
    parts = [part(known, digest) for digest in layers]
    manifest = [{"Config": files[wanted], "RepoTags": None, "Layers": parts}]
    single(("manifest.json",), json.dumps(manifest).encode(), target)
    target.end()


class Content:
    """Digest a member's data while it is written."""

    def __init__(self, stream: Stream, *, keep: bool) -> None:
        self._stream = stream
        self._keep = keep
        self.kept: list[bytes] = []
        self.head = b""
        self.digest = hashlib.sha256()

    def read(self, size: int) -> bytes:
        piece = self._stream.exactly(size, "in a file's data")
        self.digest.update(piece)
        self.head = self.head or piece[:16]
        if self._keep:
            self.kept.append(piece)
        return piece


def diff_ids(config: bytes) -> list[str]:
    """Return the digests of an image's unpacked layers, lowest first."""
    try:
        found = json.loads(config)["rootfs"].get("diff_ids") or []
        if all(isinstance(digest, str) for digest in found):
            return list(found)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadImage(f"its configuration does not name its layers: {type(error).__name__}") from error
    raise BadImage("its configuration does not name its layers by digests")


def part(files: dict[str, str], digest: str) -> str:
    try:
        return files[digest.removeprefix("sha256:")]
    except KeyError as error:
        raise BadImage(f"it lacks the layer {digest[:80]}, which its configuration names; are its layers "
                       "packed? `docker save` writes them as they are") from error
