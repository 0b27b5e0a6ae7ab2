# SPDX-License-Identifier: Apache-2.0
"""Snapshot a server's root to an image in Glance without stopping it, as a copy packed by the engine."""

import threading
from collections.abc import Callable
from typing import Any

from nova import exception, objects
from nova.compute import task_states
from nova.image.glance import API as Glance
from oslo_log import log as logging
from oslo_utils import excutils, units

from containerhost import errors
from containerhost.engines.capabilities import Exports, Packed, Reader
from containerhost.images.members import HOLES
from nova_lxd_ext.errors import LXDError
from nova_lxd_ext.host.architectures import canonical
from nova_lxd_ext.instance.states import States

LOG = logging.getLogger(__name__)

STEP = 10  # per cent between two updates
PACKED = 50  # per cent: half for packing, half for the upload


class Snapshots:
    """Upload servers' roots to images in Glance.

    :param apparent_size: returns the bytes of a container's files with the holes of sparse files; None if unknown
    """

    def __init__(self, states: States, exports: Exports, glance: Glance,
                 apparent_size: Callable[[str], int | None]) -> None:
        self._apparent_size = apparent_size
        self._states = states
        self._exports = exports
        self._glance = glance
        self._lock = threading.Lock()
        self._running: set[str] = set()

    def take(self, context: Any, instance: objects.Instance, image_id: str,
             update_task_state: Callable[..., None]) -> None:
        """Fill the image ``image_id``, created by nova, with the server's current root.

        :param update_task_state: sets the task state of the next step; raises if the tenant has deleted the server
        :raises InstanceNotFound: the server has no container, or it was deleted meanwhile
        :raises ImageNotFound: the image was deleted meanwhile
        :raises LXDError: its sparse files have holes so large that the engine would read for hours
        """
        name = self._states.require(instance).name
        self._require_no_large_holes(instance, name)
        before = instance.progress
        with self._lock:
            self._running.add(image_id)
        try:
            source = self._exports.take(name, image_id)
            update_task_state(task_state=task_states.IMAGE_PENDING_UPLOAD)
            packed = self._exports.pack(source, image_id, Progress(instance, 0))
            update_task_state(task_state=task_states.IMAGE_UPLOADING,
                              expected_state=task_states.IMAGE_PENDING_UPLOAD)
            image = description(instance, canonical(source.architecture))
            self._upload(context, instance, image_id, image, packed)
        except errors.EngineError as error:
            # If the tenant deleted the server meanwhile, report that and not its consequence.
            self._states.require(instance)
            raise LXDError(reason=f"The snapshot failed: {error}") from error
        finally:
            instance.progress = before  # nova saves it at the end of the task
            self._discard(name, image_id)
            with self._lock:
                self._running.discard(image_id)

    def _require_no_large_holes(self, instance: objects.Instance, name: str) -> None:
        limit = (1 + HOLES) * instance.flavor.root_gb * units.Gi
        found = self._apparent_size(name) if limit else None
        if found is not None and found > limit:
            raise LXDError(reason=(
                f"The snapshot is refused: the server's files are {found} bytes long with the holes of sparse files, "
                f"{limit} are allowed. Delete those with large holes: find / -xdev -size +{instance.flavor.root_gb}G"))

    def purge(self) -> None:
        """Remove the remains of snapshots that a killed nova-compute did not finish."""
        names = [state.name for state in self._states.all()]
        with self._lock:
            running = frozenset(self._running)
        for key in self._exports.purge(names, running):
            LOG.warning("Removed the remains of an interrupted snapshot to image %s", key)

    def _upload(self, context: Any, instance: objects.Instance, image_id: str, image: dict[str, Any],
                packed: Packed) -> None:
        with self._exports.reading(packed) as reader:
            try:
                data = Reported(reader, packed.size, Progress(instance, PACKED))
                found = self._glance.update(context, image_id, image, data=data)
            except Exception:
                # Glance returns various errors if the image was deleted during the upload; nova ends the task without
                # an error on its own.
                with excutils.save_and_reraise_exception():
                    self._glance.get(context, image_id)
        if found["size"] != packed.size:
            # After an error, nova's Glance client retries with the rest of the stream only.
            raise exception.ImageUnacceptable(image_id=image_id, reason=(
                f"Glance has {found['size']} of the snapshot's {packed.size} bytes: the upload was interrupted. "
                f"Take the snapshot again."))

    def _discard(self, name: str, key: str) -> None:
        """Remove the remains of a snapshot; :meth:`purge` removes later what cannot be removed now."""
        try:
            self._exports.discard(name, key)
        except errors.EngineError as error:
            LOG.warning("Files of the snapshot to image %s on this host are removed later: %s", key, error)


class Progress:
    """Report a snapshot's progress to the API in steps, and end it when the tenant has deleted the server."""

    def __init__(self, instance: objects.Instance, start: int) -> None:
        self._instance = instance
        self._start = start
        self._shown = start - STEP
        self(0)

    def __call__(self, percent: int) -> None:
        """Report progress.

        :raises UnexpectedDeletingTaskStateError: nova then ends the snapshot without an error
        """
        now = self._start + percent * PACKED // 100
        if now >= self._shown + STEP:
            self._shown = now
            self._instance.progress = now
            self._instance.save(expected_task_state=[self._instance.task_state])


class Reported:
    """Report progress while reading."""

    def __init__(self, reader: Reader, size: int, progress: Progress) -> None:
        self._reader = reader
        self._size = size
        self._progress = progress

    def read(self, size: int = -1) -> bytes:
        piece = self._reader.read()
        self._progress(100 * self._reader.done // max(self._size, 1))
        return piece


def description(instance: objects.Instance, architecture: str) -> dict[str, Any]:
    """Return Glance's properties of a snapshot in addition to those that nova wrote."""
    return {"disk_format": "raw", "container_format": "bare",
            "properties": {"hw_architecture": architecture, "owner_id": instance.project_id,
                           "image_location": "snapshot", "image_state": "available"}}
