# SPDX-License-Identifier: Apache-2.0
"""Manage root disks: the images of containers, and the images created from containers.

Every image that a VM needs has a tag for the VM in Docker (``onedock/one-12:…``) while the VM is on this host. An
image is removed with its last tag.
"""

import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from containerhost.engines import copyrounds
from containerhost.engines.docker.images import LAYERS_LIMIT, Divided, Images
from containerhost.engines.docker.layerwriter import NOTHING, Bounds, Entries
from containerhost.errors import EngineError
from containerhost.linux.lock import FileLock
from containerhost.rollback import Rollback
from onedock import rootowner
from onedock.imageref import IMAGE, ImageRef
from onedock.rootowner import read
from onedriver.errors import BadInput, DriverError, NotSupported
from onedriver.node import datastores, room
from onedriver.node.imagelocks import ImageLocks, naming
from onedriver.node.names import name
from onedriver.node.vmm import SNAPSHOT
from onedriver.vm import Vm

LOG = logging.getLogger(__name__)

ROOT = "root"
KEPT = "kept"
ARRIVING = "arriving"  # the image of the last round of a live migration to this node
ARCHIVE = ".tar"  # suffix of a disk's archive
ROUNDS = copyrounds.ROUNDS + 1  # layers that a live migration adds at most
DISK = "disk."  # the transfer driver's, see nodeimages.py
LOCK = ".images"  # held while an image is tagged or untagged, for no longer than that takes
OFFSET_LIMIT = 1 << 62  # bytes
LOADS = ".loads"  # one lock for each image, held while it is loaded
TRIES = 3  # another VM's end may remove an image between its loading and its naming
#: Machines as Go, and so Docker, calls them, by the kernel's names.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class RootImages:
    """Provide the images of VMs' root disks in Docker, and save containers' data as new images.

    :param datastores: OpenNebula's
    :param locks: a directory shared by all processes of this driver on the host
    :param timeout: seconds to wait for other processes that load the same image, or name images
    """

    def __init__(self, images: Images, datastores: Path, locks: Path, timeout: int) -> None:
        self._images = images
        self._datastores = datastores
        self._state = locks
        self._lock = FileLock(locks / LOCK, timeout)
        self._loads = ImageLocks(locks / LOADS, timeout)

    def file(self, vm: Vm) -> Path:
        """Return the root disk's file, in the VM's system datastore on this node."""
        return self.file_in(vm.id, vm.system_ds, vm.root.id)

    def file_in(self, vm_id: int, system_ds: int | None, disk: int = 0) -> Path:
        return self._datastores / str(system_ds) / str(vm_id) / f"disk.{disk}"

    def ref(self, vm: Vm) -> ImageRef:
        """Return the reference of a VM's root disk; raise BadInput if that is missing, or names no image."""
        return read(self.file(vm))

    def ensure(self, vm: Vm) -> str:
        """Return the image for the VM's container, after loading it into Docker if needed.

        :raises BadInput: it is missing, or for another architecture
        :raises Busy: another process loads it for too long
        """
        ref, file = self.ref(vm), self.file(vm)
        tries = 0
        while not named(self._images, self._lock, ref.image, repository(vm.id), ROOT):
            if tries == TRIES:
                raise DriverError(f"the image {ref.image} ({ref.reference}) of {file} was loaded, but removed "
                                  f"immediately, {TRIES} times: does something on this host remove unused images "
                                  "(docker image prune)?")
            tries += 1
            self._load(ref, file)
        found, own = self._images.architecture(ref.image), ARCHITECTURES.get(os.uname().machine, os.uname().machine)
        if found not in ("", own):
            self.release(vm.id)
            raise BadInput(f"the image {ref.image} ({ref.reference}) is for {found}, but this host is {own}")
        return ref.image

    def _load(self, ref: ImageRef, file: Path) -> None:
        if ref.archive is None:
            raise BadInput(f"the image {ref.image} ({ref.reference}) of {file} is not on this host, and there is no "
                           "archive of it beside the disk")
        path = file.with_name(ref.archive)
        with self._loads.held(ref.image):
            if not self._images.has(ref.image):  # which another one may just have loaded
                with datastores.opened(path) as disk, disk.path.open("rb") as archive:
                    self._images.load(archive, str(path), ref.image)

    def keep(self, vm_id: int, file: Path, stop: Callable[[], None] = lambda: None) -> None:
        """Replace the VM's root disk by its container's content: an image, as an archive beside the disk.

        What the container's image has is copied before the container is stopped. Of an image with too many layers for
        another live migration all is copied afterwards, as one layer.

        :param stop: stops the container
        """
        self.require_newest(vm_id, file)
        archive, kept = f"{file.name}{ARCHIVE}", f"{repository(vm_id)}:{KEPT}"
        self._images.remove(kept)  # of a try that was killed
        with Rollback(f"keeping what VM {vm_id} wrote") as undo:
            undo.on_error("its image", self._images.remove, kept)
            with datastores.created(file.with_name(archive)) as new:
                image = self._keep_flat(vm_id, new, stop) if self._is_deep(vm_id) else self._keep(vm_id, new, stop)
                before = read(file)
            rootowner.accept(self._state, vm_id, before.image, image)
            rootowner.write(file, dataclasses.replace(before, image=image, archive=archive, vm=vm_id, node=None))

    def require_newest(self, vm_id: int, file: Path) -> None:
        """Raise DriverError if the VM's container on this node is older than its root disk."""
        rootowner.require_newest(self._state, vm_id, read(file).image)

    def _is_deep(self, vm_id: int) -> bool:
        """Return whether the image of a VM's container has too many layers for a live migration to add its own."""
        return len(self._images.layers_of(name(vm_id))) + ROUNDS >= LAYERS_LIMIT

    def _keep_flat(self, vm_id: int, new: Path, stop: Callable[[], None]) -> str:
        room.require(new, self._images.root_size(name(vm_id)))
        stop()
        return self._images.flatten(name(vm_id), new, Bounds(room.available(new)))

    def _keep(self, vm_id: int, new: Path, stop: Callable[[], None]) -> str:
        divided = self._images.divided(name(vm_id))
        if divided is not None:
            room.require(new, self._images.size(divided.image) + divided.written)
            self._images.save(divided.image, new, Bounds(room.available(new)))
        stop()
        return self._write(self._images.commit(name(vm_id), repository(vm_id), KEPT), divided, new)

    def _write(self, image: str, divided: Divided | None, archive: Path) -> str:
        """Complete an archive, and return the id of the image that it has.

        :param image: made of the stopped container
        :param divided: of the container, whose own image the archive has; None if the archive is empty
        """
        if divided is not None:
            room.require(archive, self._images.size(image) - self._images.size(divided.image))
            try:
                return self._images.append(image, divided.upper, archive, Bounds(room.available(archive)))
            except EngineError as error:
                LOG.warning("Docker writes all layers anew: %s", error)
                os.truncate(archive, 0)
        room.require(archive, self._images.size(image))
        self._images.save(image, archive, Bounds(room.available(archive)))
        return image

    def is_kept(self, vm: Vm) -> bool:
        """Return whether the disk has the VM's data from when it left a host."""
        return self.ref(vm).vm == vm.id

    def release(self, vm_id: int, *, disks: bool = False) -> None:
        """Remove the images that only the VM needed.

        :param disks: also those that its disks name, which else are the transfer driver's
        """
        with naming(self._lock):
            for tag in sorted(self._images.names(repository(vm_id))):
                if tag.startswith(DISK) and not disks:
                    continue
                self._images.remove(f"{repository(vm_id)}:{tag}")

    def hold(self, vm_id: int, image: str) -> None:
        """Record that the VM's container uses this image now."""
        self._images.tag(image, repository(vm_id), ROOT)


    # Live migrations.

    @contextlib.contextmanager
    def leaving(self, vm_id: int, file: Path, require_wanted: Callable[[], None], timeout: int
                ) -> Iterator["LeavingRoot"]:
        """Copy the root of a VM into an archive beside its disk, which is complete when the block succeeds.

        :param require_wanted: called often; raises an error to end it
        :param timeout: seconds that one round may take
        :raises NotSupported: it cannot be copied while the VM runs
        """
        found = self._images.divided(name(vm_id))
        if found is None or not self._images.times_changes():
            raise NotSupported("use onevm migrate without --live: it takes Docker's storage driver overlay2 on ext4, "
                               "XFS or btrfs, with Native Overlay Diff and without userns-remap")
        if self._is_deep(vm_id):
            raise NotSupported("use onevm migrate --poff, which makes one of its image's layers: there are "
                               f"{LAYERS_LIMIT - ROUNDS} or more")
        with datastores.created(file.with_name(f"{file.name}{ARCHIVE}")) as archive:
            room.require(archive, self._images.size(found.image) + found.written)
            yield LeavingRoot(self._images, name(vm_id), found, archive, require_wanted, timeout)

    def offer(self, vm_id: int, file: Path, image: str, node: str) -> None:
        """Offer the VM with the image in the archive of :meth:`leaving` to another node."""
        rootowner.offer(file, dataclasses.replace(read(file), image=image, archive=f"{file.name}{ARCHIVE}", vm=vm_id,
                                                  node=node))

    def fetch(self, vm_id: int, file: Path, part: Mapping[str, Any]) -> None:
        """Load the image in the archive that another node is writing.

        :param part: of :meth:`LeavingRoot.copy`, unchecked
        :raises DriverError: it is malformed, or not an image's
        """
        match part:
            case {"image": str(image), "base": str(base), "offset": int(offset)} if (
                    len(part) == 3 and IMAGE.fullmatch(image) and IMAGE.fullmatch(base)
                    and not isinstance(offset, bool) and 0 <= offset < OFFSET_LIMIT):
                pass
            case _:
                raise DriverError("the source of the live migration sends a malformed request, with "
                                  f"{', '.join(sorted(part))[:200]}")
        present = self._images.layers(base) if self._images.has(base) else ()
        path = file.with_name(f"{file.name}{ARCHIVE}{datastores.UNFINISHED}")
        with datastores.opened(path) as disk, disk.path.open("rb") as archive:
            size = archive.seek(0, os.SEEK_END) - archive.seek(offset if present else 0)
            room.require(self._images.directory(), 2 * size)  # Docker copies an archive before it unpacks it
            self._images.load(archive, str(path), image, present)
        before = self._images.names(repository(vm_id)).get(ARRIVING)
        if not named(self._images, self._lock, image, repository(vm_id), ARRIVING):
            raise DriverError(f"the image {image} was loaded, but removed immediately")
        if before not in (None, image):
            self._images.remove(str(before))

    def arrived(self, vm_id: int) -> None:
        """Remove the name of the image that a live migration brought, which the VM has now. Idempotent."""
        self._images.remove(f"{repository(vm_id)}:{ARRIVING}")

    @staticmethod
    def discard_unfinished(file: Path) -> None:
        """Remove the archive that a killed live migration left, where a VM of this node does not need it."""
        for wanted in (f"{file.name}{ARCHIVE}{datastores.UNFINISHED}",
                       *([] if read(file).archive else [f"{file.name}{ARCHIVE}"])):
            with datastores.open_directory(file.parent) as directory:
                directory.unlink(wanted)


class LeavingRoot:
    """Write the root of a container that leaves, in rounds.

    :ivar image: id of the image that the archive has
    """

    def __init__(self, images: Images, container: str, found: Divided, archive: Path,
                 require_wanted: Callable[[], None], timeout: int) -> None:
        self._images = images
        self._container = container
        self._upper = found.upper
        self._archive = archive
        self._require_wanted = require_wanted
        self._timeout = timeout
        self._entries: Entries | None = None
        self.image = found.image

    def copy(self, *, runs: bool) -> dict[str, Any]:
        """Write the container's image, and what changed since the round before.

        :param runs: whether the container may run; without, the copy is complete afterwards
        :returns: the archive's new image and its former one, and where those parts of it begin that an engine with the
            former one lacks
        :raises DriverError: it is cancelled, or does not end in time
        """
        end = time.monotonic() + self._timeout

        def go_on() -> None:
            self._require_wanted()
            if time.monotonic() > end:
                raise DriverError(f"a round of copying container {self._container} has not ended within "
                                  f"migration_timeout, {self._timeout} s")

        if self._entries is None:
            self._images.save(self.image, self._archive, Bounds(room.available(self._archive), go_on))
        base = self.image
        found = self._images.append_changes(self._container, self._upper, self._archive, self._entries or NOTHING,
                                            Bounds(room.available(self._archive), go_on), runs=runs)
        self.image, self._entries = found.image, found.entries
        return {"image": self.image, "base": base, "offset": found.offset}


class Snapshots:
    """Manage snapshots of containers' roots, each an image in addition to that of its VM's container."""

    def __init__(self, images: Images) -> None:
        self._images = images

    def images(self, container: str) -> dict[str, str]:
        """Return the image of each tag."""
        tags = self._images.names(repository_of(container))
        return {tag: image for tag, image in tags.items() if tag.startswith(SNAPSHOT)}

    def names(self, container: str) -> frozenset[str]:
        return frozenset(self.images(container))

    def create(self, container: str, name: str) -> None:
        self._images.commit(container, repository_of(container), name)

    def delete(self, container: str, name: str) -> None:
        self._images.remove(f"{repository_of(container)}:{name}")


def named(images: Images, lock: FileLock, image: str, place: str, tag: str) -> bool:
    """Tag an image, to keep it.

    :param lock: the lock of all that name and unname images
    :param place: the repository of the name
    :returns: False if Docker does not have the image
    """
    with naming(lock):
        if not images.has(image):
            return False
        images.tag(image, place, tag)
        return True


def repository(vm_id: int) -> str:
    return repository_of(name(vm_id))


def repository_of(container: str) -> str:
    return f"onedock/{container}"
