# SPDX-License-Identifier: Apache-2.0
"""Keep Glance's images on this host: fetched once, rebuilt, and stored in the engine's own image store.

The store is the cache: it has an image under the alias ``nova-<image id>`` with its properties, so the cache
survives restarts of nova-compute without further records. Before an image is in the store there is only one file of
it, in ``directory``, which an interrupted nova-compute leaves behind and :meth:`Cache.purge` removes.
"""

import functools
import hashlib
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, cast

from nova import exception
from nova.image.glance import API as Glance
from nova.objects.image_meta import ImageMeta
from oslo_concurrency import lockutils
from oslo_log import log as logging
from oslo_utils import units, uuidutils

from containerhost.engines.capabilities import Image, ImageStore
from containerhost.errors import EngineError, EngineTimeout
from containerhost.images import metadata
from containerhost.images.errors import BadImage, TooLarge
from containerhost.images.rebuild import rebuild
from nova_lxd_ext.host.architectures import canonical

LOG = logging.getLogger(__name__)

ALIAS = "nova-"
PARTIAL = ".part"
BOOTING = 3600.0  # s after which a boot that requested an image has created its container
REBUILD_TIMEOUT = 3600  # s
REMEMBERED = 1000  # number of remembered refused images

# Properties of an image in the store. Size and architecture are checked at every boot.
IMAGE_ID = "nova.image_id"
CHECKSUM = "nova.checksum."  # with Glance's id as suffix: images with the same root file system are stored once
UNPACKED = "nova.unpacked_bytes"
ARCHITECTURE = "nova.architecture"
FORMAT = "nova.format"
# Without it, an earlier release imported the image without rebuilding it: fetch it again.
REBUILT = "nova.rebuilt"
REBUILT_VERSION = "1"


class Cache:
    """Provide Glance's images in the engine's image store, fetching and rebuilding each once per host.

    :param directory: directory of downloads until they are in the store; the same for all processes of nova-compute
        on this host
    :param architectures: returns the engine's architectures, the host's own first
    :param clock: monotonic clock in seconds
    """

    def __init__(self, store: ImageStore, glance: Glance, directory: Path,
                 architectures: Callable[[], Sequence[str]], clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._glance = glance
        self._directory = directory
        self._ask_architectures = architectures
        self._clock = clock
        self._wanted: dict[str, float] = {}
        self._deciding = threading.Lock()
        self._refused: dict[tuple[str, str | None, int | None], str] = {}

    def ensure(self, context: Any, image_meta: ImageMeta, root_gb: int, trusted_certs: Any = None) -> str:
        """Return the image in the store, fetching it if necessary.

        Boots of one image wait for the first one's download. A download's lock is released if its process dies.

        :param root_gb: GiB of the server's root disk; 0 does not limit the image (nova allows this only to
            administrators)
        :raises ImageUnacceptable: damaged, of an unknown format, or of an architecture that does not run here
        :raises FlavorDiskSmallerThanImage: it does not fit on the root disk
        """
        limit = root_gb * units.Gi or None
        with self._deciding:
            self._wanted[image_meta.id] = self._clock()
        found = self._find(image_meta)
        if found is None:
            with self._only_fetcher(image_meta.id):
                found = self._find(image_meta)
                if found is None:
                    return self._fetch(context, image_meta, limit, trusted_certs)
        self._require_fits(image_meta, found.properties, limit)
        return found.fingerprint

    def has(self, image_meta: ImageMeta) -> bool:
        return self._find(image_meta) is not None

    def stored(self) -> tuple[Image, ...]:
        """Return all of Glance's images in the store."""
        return self._store.having(IMAGE_ID)

    def remove(self, image: Image) -> bool:
        """Remove an image from the store, unless a boot is about to use it, or others gave it another name.

        Images with the same content are one image in the store."""
        if any(not alias.startswith(ALIAS) for alias in image.aliases):
            return False
        with self._deciding:
            if any(self._clock() - self._wanted.get(image_id, -BOOTING) < BOOTING for image_id in ids_of(image)):
                return False
            self._store.delete(image.fingerprint)
            return True

    def purge(self) -> tuple[str, ...]:
        """Remove the remains of interrupted fetches: files, and images in the store without an alias.

        :returns: ids of the images
        """
        files = {path.stem: path for path in self._directory.glob(f"*{PARTIAL}")}
        nameless = {image.filename.removeprefix(ALIAS): image for image in self._store.unnamed(ALIAS)}
        purged = []
        for image_id in sorted(files.keys() | nameless.keys()):
            try:
                with self._only_fetcher(image_id, blocking=False):
                    if image_id in files:
                        files[image_id].unlink(missing_ok=True)
                    if image_id in nameless and self._store.find(f"{ALIAS}{image_id}") is None:
                        self._store.delete(nameless[image_id].fingerprint)
            except lockutils.AcquireLockFailedException:
                LOG.info("Another process is fetching image %s now: it is not purged", image_id)
            else:
                purged.append(image_id)
        return tuple(purged)

    @functools.cached_property
    def _architectures(self) -> tuple[str, ...]:
        """Return the host's architectures, cached so that a boot sends no request."""
        return tuple(canonical(name) for name in self._ask_architectures())

    def _find(self, image_meta: ImageMeta) -> Image | None:
        """Find an image in the store.

        Images of others with the same alias, images that were not rebuilt, and images whose id Glance has reused, as
        after a purge of its database, are ignored."""
        found = self._store.find(alias_of(image_meta))
        if found is None or found.properties.get(REBUILT) != REBUILT_VERSION:
            return None
        expected = checksum(image_meta)
        return found if expected in (None, found.properties.get(f"{CHECKSUM}{image_meta.id}")) else None

    def _only_fetcher(self, image_id: str, blocking: bool = True) -> AbstractContextManager[Any]:
        """Admit one thread of one process at a time. The empty lock file stays, because removing it would race."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return lockutils.lock(f"image-{image_id}", lock_file_prefix="nova-lxd-", external=True,
                              lock_path=str(self._directory), blocking=blocking)

    def _fetch(self, context: Any, image_meta: ImageMeta, limit: int | None, trusted_certs: Any) -> str:
        refused = self._refused.get((image_meta.id, checksum(image_meta), limit))
        if refused:
            raise exception.ImageUnacceptable(image_id=image_meta.id, reason=refused)
        path = self._directory / f"{image_meta.id}{PARTIAL}"
        try:
            self._download(context, image_meta, path, trusted_certs)
            # An unnamed file, so that nothing remains when nova-compute ends.
            with path.open("rb") as file, tempfile.TemporaryFile(dir=self._directory) as rebuilt:
                properties = self._rebuild(image_meta, file, cast(BinaryIO, rebuilt), limit)
                self._require_fits(image_meta, properties, limit)
                return self._store.import_split(metadata.tarball(properties[ARCHITECTURE]), cast(BinaryIO, rebuilt),
                                                alias_of(image_meta), properties)
        finally:
            path.unlink(missing_ok=True)

    def _download(self, context: Any, image_meta: ImageMeta, path: Path, trusted_certs: Any) -> None:
        try:
            self._glance.download(context, image_meta.id, dest_path=str(path), trusted_certs=trusted_certs)
        except OSError as error:
            # The disk is full, or glanceclient found a wrong checksum.
            raise exception.CouldNotFetchImage(
                f"Image {image_meta.id} could not be fetched from Glance to {path}: {error}") from error
        expected = checksum(image_meta)
        if expected is None:
            return
        with path.open("rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if found != expected:
            raise exception.ImageUnacceptable(
                image_id=image_meta.id,
                reason=f"it arrived damaged: its MD5 checksum is {found}, Glance promised {expected}")

    def _rebuild(self, image_meta: ImageMeta, file: BinaryIO, rebuilt: BinaryIO, limit: int | None) -> dict[str, str]:
        """Rebuild the image's root file system, and return its properties in the store."""
        try:
            found = rebuild(file, rebuilt, limit, REBUILD_TIMEOUT)
        except TooLarge as error:
            raise exception.FlavorDiskSmallerThanImage(flavor_size=error.limit, image_size=error.size) from error
        except BadImage as error:
            if len(self._refused) >= REMEMBERED:
                self._refused.clear()
            if checksum(image_meta):  # recomputing the checksum would need as much CPU time again
                self._refused[image_meta.id, checksum(image_meta), limit] = str(error)
            raise exception.ImageUnacceptable(image_id=image_meta.id, reason=str(error)) from error
        except EngineTimeout as error:
            raise exception.ImageUnacceptable(image_id=image_meta.id, reason=str(error)) from error
        except EngineError as error:
            raise exception.CouldNotFetchImage(f"Image {image_meta.id} could not be rebuilt: {error}") from error
        architecture = found.architecture or wanted_architecture(image_meta) or self._architectures[0]
        return {IMAGE_ID: image_meta.id, UNPACKED: str(found.unpacked), ARCHITECTURE: canonical(architecture),
                f"{CHECKSUM}{image_meta.id}": checksum(image_meta) or "", FORMAT: found.format,
                REBUILT: REBUILT_VERSION}

    def _require_fits(self, image_meta: ImageMeta, properties: Mapping[str, str], limit: int | None) -> None:
        """Refuse an image that does not run on this host or fit the disk, at every boot."""
        own = properties[ARCHITECTURE]
        wanted = wanted_architecture(image_meta) or own
        if wanted != own:
            raise exception.ImageUnacceptable(
                image_id=image_meta.id,
                reason=f"its hw_architecture is {wanted}, but the metadata.yaml in it says {own}")
        if own not in self._architectures:
            raise exception.ImageUnacceptable(
                image_id=image_meta.id,
                reason=f"its architecture is {own}; this host runs {', '.join(self._architectures)}")
        size = int(properties[UNPACKED])
        if limit is not None and size > limit:
            raise exception.FlavorDiskSmallerThanImage(flavor_size=limit, image_size=size)


def ids_of(image: Image) -> frozenset[str]:
    """Return Glance's ids of an image in the store: several if their contents are the same."""
    return frozenset(alias.removeprefix(ALIAS) for alias in image.aliases if alias.startswith(ALIAS))


def alias_of(image_meta: ImageMeta) -> str:
    """Return the alias of an image in the store.

    :raises ImageUnacceptable: the image has no valid Glance id, which is needed for the alias and a file name
    """
    if not uuidutils.is_uuid_like(image_meta.id):
        raise exception.ImageUnacceptable(image_id=image_meta.id, reason="its id is no UUID")
    return f"{ALIAS}{image_meta.id}"


def checksum(image_meta: ImageMeta) -> str | None:
    """Return Glance's MD5 checksum; None if nova does not have it."""
    return (image_meta.checksum or None) if image_meta.obj_attr_is_set("checksum") else None


def wanted_architecture(image_meta: ImageMeta) -> str | None:
    """Return the architecture in the image's property ``hw_architecture``."""
    wanted = image_meta.properties.get("hw_architecture")
    return canonical(wanted) if wanted else None
