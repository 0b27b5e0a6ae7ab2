# SPDX-License-Identifier: Apache-2.0
"""Read archives of images: of `docker save`, and OCI layouts (image-layout.md), as tarball or directory."""

import contextlib
import io
import os
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, cast

from containerhost.images import members
from containerhost.images.errors import BadImage
from containerhost.images.members import Kind, Stream
from onedock.datastore import content, decompress, digests
from onedock.datastore.content import Content, Layer, WrongArchitecture
from onedock.datastore.decompress import Corrupt
from onedock.datastore.safefiles import SafeFiles
from onedriver.errors import BadInput

MEMBERS_LIMIT = 20_000
LINKS_LIMIT = 16  # behind one another
NAMED_BY_DIGEST = re.compile(r"(?:.*/)?([0-9a-f]{64})(?:\.json|\.tar)?")
INDEX, MANIFEST = "index.json", "manifest.json"


class Files(Protocol):
    """Read the files of an archive."""

    def has(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def open(self, path: str) -> contextlib.AbstractContextManager[BinaryIO]: ...


class Entry(NamedTuple):
    """Keep the needed fields of a member, without its extended attributes, which may take 1 MiB.

    :ivar size: bytes
    :ivar offset: offset of its data in the archive in bytes; None if they are not contiguous
    :ivar link: target of a link; for a hard link, relative to the archive's top
    """

    kind: Kind
    size: int
    offset: int | None
    link: str


class Tarball:
    """Read the files of an image archive that is a tarball, in place; raise Corrupt if it is invalid or damaged."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._name = name
        self._file = file
        self._entries: dict[str, Entry] = {}
        with damage(name):
            stream = Headers(file)
            for number, member in enumerate(members.read(stream)):
                if number >= MEMBERS_LIMIT:
                    raise BadInput(f"{name} contains more than {MEMBERS_LIMIT} files, the limit for an archive of an "
                                   "image")
                self._entries["/".join(member.path)] = Entry(
                    member.kind, member.size, None if member.segments is not None else stream.tell(),
                    member.link or "/".join(member.target))

    def has(self, path: str) -> bool:
        return key(path) in self._entries

    def size(self, path: str) -> int:
        return self._entry(path).size

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        for _ in range(LINKS_LIMIT):
            entry = self._entry(path)
            if entry.kind is Kind.FILE and entry.offset is not None:
                yield cast(BinaryIO, Part(self._file, entry.offset, entry.size))
                return
            if entry.kind is Kind.HARD_LINK:
                path = entry.link
            elif entry.kind is Kind.SYMLINK:  # of `docker save` before version 25: a layer that two images share
                path = posixpath.join(posixpath.dirname(path), entry.link)
            else:
                break
        raise Corrupt(f"{self._name}: {path[:100]} is not a file")

    def _entry(self, path: str) -> Entry:
        try:
            return self._entries[key(path)]
        except KeyError as error:
            raise Corrupt(f"{self._name}: it has no {path[:100]}, which it refers to") from error


class Headers(Stream):
    """Read only the headers of a tarball."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, file.seek(0, os.SEEK_END))
        self._file = file
        file.seek(0)

    def seek(self, position: int) -> None:
        if not self.total <= position <= self._limit:
            raise BadImage("a header refers to a position that is not after it")
        self.total = self._file.seek(position)

    def count_holes(self, member: members.Member) -> None:
        """Skip the check of holes: a layer has a separate limit for them, and no part of an archive has any."""


class Part(io.RawIOBase):
    """Read a part of an open file, concurrently to readers of other parts."""

    def __init__(self, file: BinaryIO, offset: int, size: int) -> None:
        self._file = file
        self._offset = offset
        self._end = offset + size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._offset)
        data = self._file.read(min(len(buffer), self._end - self._offset))
        buffer[:len(data)] = data
        self._offset += len(data)
        return len(data)


def key(path: str) -> str:
    return posixpath.normpath(f"/{path}").lstrip("/")


class Directory:
    def __init__(self, path: Path, files: SafeFiles) -> None:
        self._path = path
        self._files = files

    def has(self, path: str) -> bool:
        return self._inside(path).is_file()

    def size(self, path: str) -> int:
        with self.open(path) as file:
            return file.seek(0, 2)

    def open(self, path: str) -> contextlib.AbstractContextManager[BinaryIO]:
        return self._files.open(self._inside(path))

    def _inside(self, path: str) -> Path:
        if path.startswith("/") or ".." in path.split("/"):
            raise Corrupt(f"{self._path}: {path[:100]} is outside of it")
        return self._path / path


@contextlib.contextmanager
def damage(name: str) -> Iterator[None]:
    try:
        yield
    except (*decompress.DAMAGED, BadImage) as error:
        raise Corrupt(f"{name} is damaged, or not an archive of an image: {str(error)[:200] or type(error).__name__}; "
                      "create it again (docker save, skopeo copy … oci-archive:)") from error


def read(files: Files, architecture: str, name: str) -> Content:
    """Read an archive of an image.

    :param name: of the archive, for messages
    :raises BadInput: it is damaged, holds no image for the architecture, or more than one
    """
    if files.has(INDEX):
        try:
            return oci(files, architecture, name)
        except (Corrupt, WrongArchitecture):
            # `docker save` writes both, and an index of platforms that the archive need not have.
            if not files.has(MANIFEST):
                raise
    if files.has(MANIFEST):
        return docker(files, name)
    raise Corrupt(f"{name} is not an archive of an image: it has neither {MANIFEST} (docker save) nor {INDEX} (OCI)")


def docker(files: Files, name: str) -> Content:
    """Read the format of `docker save`, in the moby project's image specification v1.2."""
    text = small(files, MANIFEST, name)
    images = content.parsed(b'{"images":' + text + b"}", name)["images"]
    if not isinstance(images, list) or not images:
        raise Corrupt(f"{name}: {MANIFEST} names no image")
    if len(images) > 1:
        raise BadInput(f"{name} contains {len(images)} images; create an archive with only the wanted one")
    image = images[0] if isinstance(images[0], dict) else {}
    config, layers = image.get("Config"), image.get("Layers") or []
    if not isinstance(config, str) or not isinstance(layers, list) or not all(isinstance(one, str) for one in layers):
        raise Corrupt(f"{name}: {MANIFEST} names no configuration or no layers")
    data = small(files, config, name)
    named = NAMED_BY_DIGEST.fullmatch(config)
    digests.require(f"the configuration in {name}", f"sha256:{named[1]}" if named else None, digests.of(data))
    return Content(data, tuple(Layer(opener(files, path)) for path in layers), name,
                   sum(files.size(path) for path in layers))


def oci(files: Files, architecture: str, name: str) -> Content:
    def blob(digest: str) -> bytes:
        data = small(files, path_of(digest), name)
        digests.require(f"a part of {name}", digest, digests.of(data))
        return data

    manifest = content.manifest(small(files, INDEX, name), blob, architecture, name)
    config, layers = content.layers_of(manifest, name)
    return Content(blob(config["digest"]),
                   tuple(Layer(opener(files, path_of(one["digest"])), one["digest"], one["size"]) for one in layers),
                   name,
                   sum(one["size"] for one in layers))


def path_of(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def opener(files: Files, path: str) -> Callable[[], contextlib.AbstractContextManager[BinaryIO]]:
    return lambda: files.open(path)


def small(files: Files, path: str, name: str) -> bytes:
    with files.open(path) as file:
        data = file.read(content.CONFIG_LIMIT + 1)
    if len(data) > content.CONFIG_LIMIT:
        raise Corrupt(f"{name}: {path[:100]} is larger than {content.CONFIG_LIMIT >> 20} MiB")
    return data

