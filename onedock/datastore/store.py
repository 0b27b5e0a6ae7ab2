# SPDX-License-Identifier: Apache-2.0
"""Store a datastore's container images, with each layer stored once, and data files.

    <name>.image             what ``SOURCE`` names: a record, see record.py
    <name>.raw               what ``SOURCE`` names: a file system
    .images/<name>-<n>/      an image: ``config.json``, and each layer's unpacked tarball under its digest
    .layers/<digest>         the same tarballs, by hard links
    .partial/<name>/         incomplete images, locked by their writers
    .exports/<name>.tar      archives for marketplaces, which they have removed

A layer without images has one link left and is removed. That needs no lock: a user of a layer links it, and a linked
layer stays. Remains of a killed process are removed by later ones when they are old.
"""

import contextlib
import errno
import logging
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Self, cast

from containerhost.images import members
from containerhost.linux.files import replacing
from containerhost.linux.lock import FileLock
from onedock import datafiles
from onedock.datastore import archives, decompress, digests
from onedock.datastore.content import Content, Layer
from onedock.datastore.decompress import Corrupt
from onedock.datastore.record import Record
from onedock.datastore.room import Room, TooLarge, mib
from onedriver.errors import BadInput
from onedriver.node.context import remove

LOG = logging.getLogger(__name__)

IMAGE, DATA = ".image", ".raw"
CONFIG = "config.json"
HOLES_LIMIT = 1 << 30  # bytes of a layer
OLD = 24 * 3600  # seconds after which what nobody refers to is left over


class Store:
    """Store, clone and remove the images and files of a datastore (BASE_PATH), with each layer stored once."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self._images, self._layers, self._partial = base / ".images", base / ".layers", base / ".partial"
        self.exports = base / ".exports"

    def prepared(self) -> Self:
        """Return the store after creating its directories, which a new datastore lacks."""
        for directory in (self.base, self._images, self._layers, self._partial, self.exports):
            directory.mkdir(parents=True, exist_ok=True)
        return self

    def new(self, suffix: str) -> Path:
        """Return the path for a new image or new data."""
        return self.base / f"{secrets.token_hex(16)}{suffix}"

    def known(self, source: str) -> Path:
        """Return the path of an image or of data; raise BadInput if it is not a path of this datastore."""
        path = Path(os.path.normpath(source))
        if path.parent != Path(os.path.normpath(self.base)) or path.suffix not in (IMAGE, DATA) \
                or path.name.startswith("."):
            raise BadInput(f"{source[:200]} is not an image of the datastore in {self.base}")
        return self.base / path.name

    def room(self, limit: int | None = None) -> Room:
        """Return the space for one action, at most ``limit`` bytes, and at most the free space."""
        found = os.statvfs(self.base)
        return Room(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, limit)

    # Images.

    def put(self, path: Path, found: Content, room: Room) -> None:
        """Store an image with its layers, replacing an existing one.

        :raises Corrupt: a layer is damaged
        :raises DigestMismatch: a layer does not match its digest
        :raises TooLarge: its layers take more than ``room``, or have larger holes than Docker should fill
        """
        with self.scratch() as directory:
            image = directory / "image"
            image.mkdir()
            (image / CONFIG).write_bytes(found.config)
            for layer, diff_id in zip(found.layers, found.diff_ids, strict=True):
                self._take_layer(layer, diff_id, image, found.reference, room)
            self._share_layers(image)
            name = f"{path.stem}-{secrets.token_hex(4)}"
            os.rename(image, self._images / name)
        self.put_record(path, Record(found.image, found.reference, name))

    def put_record(self, path: Path, record: Record) -> None:
        before = self._directory_of(path)
        try:
            with replacing(path) as unfinished:
                unfinished.write_text(record.text(), encoding="utf-8")
        except BaseException:
            self._remove_directory(record.directory)
            raise
        self._remove_directory(before)

    def directory(self, record: Record) -> Path:
        """Return the directory of an image's configuration and layers."""
        return self._images / Path(record.directory or "none").name

    def clone(self, path: Path, source: Path) -> None:
        """Clone an image, sharing its layers, or a data file."""
        if path.suffix == DATA:
            with source.open("rb") as file:
                datafiles.copy(file, path)
            return
        record = Record.read(source)
        if record.directory is None:
            self.put_record(path, record)
            return
        name = f"{path.stem}-{secrets.token_hex(4)}"
        with self.scratch() as directory:
            shutil.copytree(self.directory(record), directory / "image", copy_function=os.link)
            os.utime(directory / "image")  # which would be as old as the source, and be swept before it has a record
            os.rename(directory / "image", self._images / name)
        self.put_record(path, Record(record.image, record.reference, name))

    def remove(self, path: Path) -> None:
        """Remove an image or data. Idempotent."""
        directory = self._directory_of(path)
        path.unlink(missing_ok=True)
        remove(datafiles.snapshots(path))
        self._remove_directory(directory)

    def _directory_of(self, path: Path) -> str | None:
        """Return the directory of an image's layers; None if its record is damaged, for which a sweep removes it."""
        with contextlib.suppress(BadInput):
            return Record.read(path).directory if path.suffix == IMAGE and path.exists() else None
        return None

    def _remove_directory(self, name: str | None) -> None:
        directory = self._images / name if name else None
        if directory is None or not directory.is_dir():
            return
        names = os.listdir(directory)
        shutil.rmtree(directory)
        for layer in names:
            self._forget(self._layers / layer)

    def _forget(self, layer: Path) -> None:
        # Who links it between these two steps keeps it; it is only not shared with later ones.
        with contextlib.suppress(FileNotFoundError):
            if layer.stat().st_nlink == 1:
                layer.unlink()

    def _take_layer(self, layer: Layer, diff_id: str, image: Path, reference: str, room: Room) -> None:
        name = diff_id.partition(":")[2]
        # An image may have a layer twice.
        if not (image / name).exists() and not (layer.proven and linked(self._layers / name, image / name)):
            write(layer, diff_id, image / name, reference, room)

    def _share_layers(self, image: Path) -> None:
        for file in [file for file in image.iterdir() if file.name != CONFIG and file.stat().st_nlink == 1]:
            shared, other = self._layers / file.name, image / f".{file.name}"
            # Where another process was faster, one of the two is enough.
            if not linked(file, shared) and linked(shared, other):
                os.replace(other, file)

    # What is not whole, and what was left over.

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield a directory that is removed at the end of the block."""
        directory = self._partial / secrets.token_hex(8)
        directory.mkdir()
        try:
            with FileLock(directory / ".lock", 0).held():
                yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def sweep(self) -> None:
        """Remove the remains of killed processes."""
        for directory in filter(old, self._partial.iterdir()):
            with contextlib.suppress(TimeoutError, FileNotFoundError), FileLock(directory / ".lock", 0).held():
                LOG.info("removing the remains of a killed action in %s", directory)
                shutil.rmtree(directory)
        for file in filter(old, self.exports.iterdir()):
            file.unlink(missing_ok=True)
        try:
            used = {Record.read(path).directory for path in self.base.glob(f"*{IMAGE}")}
        except BadInput as error:
            LOG.warning("no layers are removed, because it is unknown which are used: %s", error)
            return
        for directory in filter(old, self._images.iterdir()):
            if directory.name not in used:
                LOG.info("removing the layers in %s, which no image has", directory)
                self._remove_directory(directory.name)
        for layer in filter(old, self._layers.iterdir()):
            self._forget(layer)


def old(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > OLD


def linked(source: Path, target: Path) -> bool:
    """Link a layer's file, and return whether it existed with few enough links, and the target did not."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EMLINK, errno.EEXIST):
            return False
        raise
    return True


def write(layer: Layer, diff_id: str, target: Path, reference: str, room: Room) -> None:
    """Write an unpacked layer, and verify its digest.

    :raises Corrupt: it cannot be unpacked
    :raises DigestMismatch: it is not the layer that the image names
    """
    what = f"a layer of {reference}"
    with layer.open() as stream:
        packed = digests.Counted(stream, layer.size)
        try:
            content = digests.Counted(decompress.reader(packed))
            with target.open("xb") as file:
                room.copy(cast(BinaryIO, content), file)
                file.flush()
                os.fsync(file.fileno())
        except decompress.DAMAGED as error:
            digests.require(what, layer.digest, packed.digest())
            raise Corrupt(f"{what} is damaged: {str(error)[:200] or type(error).__name__}") from error
        digests.require(what, layer.digest, packed.digest())
        digests.require(what, diff_id, content.digest())
    require_few_holes(target, what)


def require_few_holes(layer: Path, what: str) -> None:
    """Raise TooLarge if the holes of a layer's sparse files, which Docker writes in full, are too large."""
    with layer.open("rb") as file, archives.damage(what):
        holes = sum(member.size - member.stored for member in members.read(archives.Headers(file)))
    if holes > HOLES_LIMIT:
        raise TooLarge(f"{what} has sparse files with holes of {mib(holes)}, which Docker would write to a node's disk "
                       f"as zeros; {mib(HOLES_LIMIT)} are allowed. Create the image without those files")
