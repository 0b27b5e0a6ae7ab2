# SPDX-License-Identifier: Apache-2.0
"""Export a container's root as one file: LXD packs it into its image store, from which it is streamed.

A running container is packed from a snapshot of it, which LXD takes without stopping it. The export's key is in the
snapshot's name and the image's file name, so that remains of an interrupted export are found (LXD's rest-api
document, ``POST /1.0/images``).
"""

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import requests

from containerhost import errors
from containerhost.engines.capabilities import Packed, Source
from containerhost.engines.lxd import snapshots
from containerhost.engines.lxd.client import LxdClient, error_for, translated

LOG = logging.getLogger(__name__)

PREFIX = "containerhost-export-"
PIECE = 1 << 16  # bytes read at once
POLL_INTERVAL = 1  # s between two polls of LXD's progress
STOPPED = 102  # LXD's status code


class Reader:
    """Read a file once, from beginning to end.

    :param size: bytes of the file
    """

    def __init__(self, response: requests.Response, endpoint: str, size: int) -> None:
        self._pieces = response.iter_content(PIECE)
        self._size = size
        self._endpoint = endpoint
        self.done = 0

    def read(self, size: int = PIECE) -> bytes:
        """Return the next piece; raise EngineError if LXD has ended the file too early, which requests may not."""
        with translated("read the packed container", self._endpoint):
            piece = next(self._pieces, b"")
        self.done += len(piece)
        if not piece and self.done < self._size:
            raise errors.EngineError(f"read the packed container: LXD ended it after {self.done} of {self._size} bytes")
        return piece


class Exports:
    """Pack containers' roots into files of LXD's image store, and remove the remains of exports.

    :param compression: program that packs: ``gzip``, ``zstd``, ``xz`` or ``none``
    :param timeout: seconds LXD may take to pack a container
    :param end_copies: stops LXD's copying of a container into a snapshot
    """

    def __init__(self, client: LxdClient, compression: str, timeout: int,
                 end_copies: Callable[[str], None] = lambda name: None) -> None:
        self._client = client
        self._end_copies = end_copies
        self._compression = compression
        self._timeout = timeout

    def take(self, name: str, key: str) -> Source:
        instance, _ = self._client.instance(name)
        if instance["status_code"] == STOPPED:
            # LXD exports a stopped container directly: on many pools a snapshot would be an additional copy.
            return Source("container", name, instance["architecture"])
        try:
            snapshots.take(self._client, instance, f"{PREFIX}{key}", f"take a snapshot of container {name}",
                           self._timeout)
        except errors.EngineTimeout:
            self._end_copies(name)
            raise
        return Source("snapshot", f"{name}/{PREFIX}{key}", instance["architecture"])

    def pack(self, source: Source, key: str, progress: Callable[[int], None]) -> Packed:
        asked = f"pack container {source.name.partition('/')[0]}"
        # The property makes each image file unique: LXD refuses a second image of the same content.
        body = {"source": {"type": source.kind, "name": source.name}, "public": False, "filename": f"{PREFIX}{key}",
                "properties": {"export": key}, "compression_algorithm": self._compression}
        operation = self._client.request("post", "images", asked=asked, json=body).json()["metadata"]
        try:
            done = self._follow(operation, asked, progress)
        except BaseException:
            self._sit_out(operation, asked)
            raise
        return Packed(done["fingerprint"], int(done["size"]))

    def _follow(self, operation: dict[str, Any], asked: str, progress: Callable[[int], None]) -> dict[str, Any]:
        end = time.monotonic() + self._timeout
        while time.monotonic() < end:
            operation = self._client.get("operations", operation["id"], "wait", asked=asked,
                                          params={"timeout": str(POLL_INTERVAL)})
            metadata = operation.get("metadata") or {}
            if operation["status_code"] == 200:
                return metadata
            if operation["status_code"] > 200:
                raise failed(asked, operation.get("err") or operation["status"])
            progress(int((metadata.get("progress") or {}).get("percent", 0)))
        raise errors.EngineTimeout(f"{asked}: not done within {self._timeout} s")

    def _sit_out(self, operation: dict[str, Any], asked: str) -> None:
        """Wait for LXD to finish packing, which it cannot cancel: only then can the result be removed."""
        try:
            self._client.wait(operation, asked, self._timeout)
        except errors.EngineError as error:
            LOG.info("%s: %s", asked, error)

    @contextlib.contextmanager
    def reading(self, packed: Packed) -> Iterator[Reader]:
        asked = f"read image {packed.fingerprint}"
        response = self._client.request("get", "images", packed.fingerprint, "export", asked=asked,
                                         stream=True)
        with contextlib.closing(response):
            yield Reader(response, self._client.settings.shown(), packed.size)

    def discard(self, name: str, key: str) -> None:
        for image in self._client.images():
            if image.get("filename") == f"{PREFIX}{key}":
                with contextlib.suppress(errors.EngineNotFound):
                    self._client.delete_image(image["fingerprint"])
        if name:
            snapshots.Snapshots(self._client).delete(name, f"{PREFIX}{key}", snapshots.BUSY_TIMEOUT)

    def purge(self, names: Collection[str], running: Collection[str]) -> tuple[str, ...]:
        found = {image["filename"].removeprefix(PREFIX): "" for image in self._client.images()
                 if image.get("filename", "").startswith(PREFIX)}
        for name in names:
            found |= {key: name for key in self._snapshots(name)}
        purged = []
        for key in sorted(found.keys() - set(running)):
            try:
                self.discard(found[key], key)
                purged.append(key)
            except errors.EngineError as error:
                LOG.error("Files of the interrupted export %s could not be removed; retried at the next "
                          "start: %s", key, error)
        return tuple(purged)

    def _snapshots(self, name: str) -> tuple[str, ...]:
        """Return the keys of the exports that left a snapshot of a container."""
        with contextlib.suppress(errors.EngineNotFound):
            urls = self._client.get("instances", name, "snapshots", asked=f"list the snapshots of container {name}")
            found = (url.partition("?")[0].rpartition("/")[2] for url in urls)
            return tuple(snapshot.removeprefix(PREFIX) for snapshot in found if snapshot.startswith(PREFIX))
        return ()


def failed(asked: str, words: str) -> errors.EngineError:
    """Return the error of a failed export: when the disk is full, LXD only reports that the packing program failed."""
    error = error_for(asked, 400, words)
    if isinstance(error, errors.StorageFull) or "broken pipe" in words:
        return errors.StorageFull(f"{error}; is the disk full where LXD keeps its images?")
    return error
