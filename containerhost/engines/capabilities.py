# SPDX-License-Identifier: Apache-2.0
"""Define optional capabilities of engines: images, pool disks, transfers, exports, snapshots, live changes.

A driver receives these from its ``backend``, the one module that names an engine's package.
"""

import dataclasses
import datetime
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import BinaryIO, NamedTuple, Protocol, TypeVar

from containerhost.devices.grants import Grant
from containerhost.engines.spec import ContainerSpec


@dataclasses.dataclass(frozen=True)
class Image:
    """Describe one image of the engine's store.

    :ivar fingerprint: SHA-256 of its file, or of metadata and root file system one after the other
    :ivar filename: name of the imported file; here its intended alias
    :ivar size: bytes, compressed as imported
    :ivar used: when a container was last created from it, otherwise when it was imported
    """

    fingerprint: str
    properties: Mapping[str, str]
    aliases: tuple[str, ...] = ()
    filename: str = ""
    size: int = 0
    architecture: str = ""
    used: datetime.datetime | None = None


class ImageStore(Protocol):
    """Store the images from which containers are created."""

    def find(self, alias: str) -> Image | None: ...

    def all(self) -> tuple[Image, ...]:
        """Return all images, by fingerprint."""

    def having(self, name: str) -> tuple[Image, ...]:
        """Return all images with a property ``name``, by fingerprint."""

    def unnamed(self, prefix: str) -> tuple[Image, ...]:
        """Return the images without an alias that were intended for one with this prefix: left by killed imports."""

    def import_split(self, metadata: bytes, rootfs: BinaryIO, alias: str, properties: Mapping[str, str]) -> str:
        """Import a root file system with its metadata tarball, and return the fingerprint of both.

        :param rootfs: a file; read from its beginning, possibly twice
        """

    def delete(self, fingerprint: str) -> None:
        """Delete an image. Idempotent; containers made from it stay."""


class Disk(NamedTuple):
    """Describe one further disk of a storage pool.

    :ivar size: bytes; 0 if unspecified
    :ivar used: a container has it in its configuration
    """

    name: str
    size: int
    labels: Mapping[str, str]
    used: bool


class PoolDisks(Protocol):
    """Further disks of one storage pool, each a file system with a size."""

    pool: str

    def all(self) -> tuple[Disk, ...]: ...

    def ensure(self, name: str, size: int, labels: Mapping[str, str]) -> None:
        """Create the disk; an existing one with the same labels keeps its content, and is enlarged if it is smaller.

        :param size: bytes
        :raises StorageFull:
        :raises EngineConflict: one of that name has other labels
        """

    def resize(self, name: str, size: int) -> None:
        """Resize the disk; its content stays.

        :param size: bytes
        :raises EngineError: the pool's type does not support it, or the content does not fit
        """

    def delete(self, name: str) -> None:
        """Delete a disk. Idempotent.

        :raises EngineError: a container has it
        """


@dataclasses.dataclass(frozen=True)
class DiskOffer:
    """Hold all that a receiver needs to fetch one disk once.

    :ivar operation: URL of the sender's operation
    :ivar certificate: of the sender, in PEM
    :ivar config: keys of the disk that go with its files
    :ivar secrets: by channel; they give access to the disk, so they are never displayed
    """

    name: str
    operation: str
    certificate: str
    config: Mapping[str, str]
    secrets: Mapping[str, str] = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class Offer(DiskOffer):
    """Hold all that a receiver needs to fetch one container once.

    :ivar architecture: of the container, as the engine names it
    """

    architecture: str


@dataclasses.dataclass(frozen=True)
class ChangesOffer(Offer):
    """Hold all that a receiver needs to fetch a container, running or not, or its changes since the last fetch.

    :ivar pool_type: of the sender's storage pool
    """

    pool_type: str


class Transfers(Protocol):
    """Move containers from one daemon to another; the receiver fetches.

    A running container is copied in rounds, each with the changes since the previous one; the last one follows when
    it is stopped.
    """

    def offer(self, name: str, address: str) -> Offer:
        """Offer a stopped container, which stays unchanged, to a receiver.

        :param address: ``https://host:port`` at which receivers reach this daemon
        """

    def offer_changes(self, name: str, address: str) -> ChangesOffer | None:
        """Offer a container, running or not, in its present state; it has a snapshot for that until :meth:`withdraw`.

        :param address: ``https://host:port`` at which receivers reach this daemon
        :returns: None if the engine, or the container's pool, cannot send differences
        """

    def withdraw(self, name: str) -> None:
        """Cancel all transfers of the container; the receivers discard theirs.

        Snapshots of :meth:`offer_changes` are removed."""

    def purge(self, names: Collection[str]) -> None:
        """Withdraw those of these containers that still have such snapshots after a failed withdrawal."""

    def fetch(self, spec: ContainerSpec, offer: Offer, timeout: int) -> None:
        """Create the container ``spec``, stopped, with the files of the offered one.

        :param timeout: seconds until it exists
        """

    def takes_changes(self, spec: ContainerSpec, offer: ChangesOffer) -> bool:
        """Return whether this engine and the pool of ``spec`` can receive differences of the offered container."""

    def fetch_changes(self, spec: ContainerSpec, offer: ChangesOffer, timeout: int, refresh: bool) -> None:
        """Create the container ``spec``, or refresh one from a former offer, with the files of the offered one.

        After an error the container is in either state, and unusable.

        :param timeout: seconds until it exists
        :param refresh: it exists already; its configuration stays
        """

    def drop_snapshots(self, name: str) -> None:
        """Remove all snapshots of a fetched container; no further difference can follow.

        An error is logged: :meth:`purge` removes those of :meth:`offer_changes`."""


class DiskTransfers(Protocol):
    """Move further disks of a storage pool from one daemon to another; the receiver fetches."""

    def offer(self, name: str, address: str) -> DiskOffer:
        """Offer a disk without writers to a receiver; it stays unchanged.

        :param address: ``https://host:port`` at which receivers reach this daemon
        """

    def withdraw(self, name: str) -> None:
        """Cancel all transfers of the disk."""

    def fetch(self, offer: DiskOffer, labels: Mapping[str, str], timeout: int) -> None:
        """Create a disk with the name, size and files of the offered one.

        :param labels: its marks here
        :param timeout: seconds until it exists
        """


class Source(NamedTuple):
    """Name what an export packs: a stopped container itself, or a snapshot of a running one.

    :ivar kind: ``container`` or ``snapshot``, as the engine calls what it can pack
    :ivar architecture: the container's, as the kernel names it
    """

    kind: str
    name: str
    architecture: str


class Packed(NamedTuple):
    """Identify the file in the engine's image store that an export has packed.

    :ivar size: bytes of the file
    """

    fingerprint: str
    size: int


class Reader(Protocol):
    """Read a file once, from beginning to end.

    :ivar done: bytes read
    """

    done: int

    def read(self, size: int = ...) -> bytes:
        """Return the next piece, of the reader's own size; empty at the end."""


class Exports(Protocol):
    """Export a container's root as one file."""

    def take(self, name: str, key: str) -> Source:
        """Capture the container's root in its present state."""

    def pack(self, source: Source, key: str, progress: Callable[[int], None]) -> Packed:
        """Pack the root into one file of the engine's image store.

        :param progress: called with the percentage from time to time; an exception from it ends the wait
        :raises StorageFull: the engine's disk has no room for the file
        :raises EngineTimeout: not done within the limit
        """

    def reading(self, packed: Packed) -> AbstractContextManager[Reader]: ...

    def discard(self, name: str, key: str) -> None:
        """Remove all parts of an export. Idempotent."""

    def purge(self, names: Collection[str], running: Collection[str]) -> tuple[str, ...]:
        """Remove the remains of interrupted exports of containers.

        :param running: keys of exports in progress
        :returns: keys of those removed
        """


class Snapshots(Protocol):
    """Snapshots of containers' root disks, by the containers' names."""

    def names(self, container: str) -> Collection[str]: ...

    def create(self, container: str, name: str) -> None:
        """Create a snapshot of the disk as it is; a running container is not stopped, and its memory is not kept."""

    def delete(self, container: str, name: str) -> None:
        """Delete a snapshot. Idempotent."""


class RestorableSnapshots(Snapshots, Protocol):
    def restore(self, container: str, name: str) -> None:
        """Restore a stopped container's disk to a snapshot."""


class Labelled(Protocol):
    """Describe a container as returned by one request."""

    def label(self, key: str) -> str | None:
        """Return one of the driver's own labels."""


Current = TypeVar("Current", bound=Labelled)


class LiveChanges(Protocol[Current]):
    """Change CPUs, memory, root disk and devices of a container while its processes keep running.

    A caller reads the container once; the steps are computed from that state, which the first step changes.
    """

    def read(self, name: str) -> Current: ...

    def obstacles(self, current: Current, spec: ContainerSpec) -> tuple[str, ...]:
        """Return the reasons why the running container cannot become ``spec`` without a restart.

        :param spec: of its parts only the grants count: all others stay as they are
        """

    def await_changes(self, name: str) -> None:
        """Wait for changes of the container that a killed caller began."""

    def differs(self, current: Current, spec: ContainerSpec) -> bool:
        """Return whether the running container differs from ``spec``."""

    def memory_in_use(self, name: str) -> int:
        """Return the bytes of memory that its processes need."""

    def adapt(self, current: Current, spec: ContainerSpec) -> None:
        """Change the running container to ``spec``; it has no :meth:`obstacles`. Repeatable.

        On an error some steps are done and some are not."""

    def replace_devices(self, current: Current, spec: ContainerSpec) -> None:
        """Detach all grants of the running container and attach those of ``spec``."""


class Size(NamedTuple):
    """Hold the cores and the memory assigned to a running container.

    :ivar cores: of the host, by which the container is bound
    :ivar memory: bytes
    """

    cores: frozenset[int]
    memory: int


class LiveSizes(Protocol[Current]):
    """Change only cores, memory and labels of a container while its processes keep running."""

    def read(self, name: str) -> Current:
        """Return the container.

        :raises EngineNotFound: there is none, or the driver did not create it
        """

    def resize(self, current: Current, size: Size, labels: Mapping[str, str]) -> None:
        """Set a running container's size, and these labels in addition to its others. Idempotent.

        :raises EngineConflict: it is not running, or has changed since ``current`` was read: nothing is changed
        :raises EngineNotFound: it was deleted, even if another one has its name
        :raises UnsupportedOnHost: a core is offline
        """


class LiveMarks(Protocol[Current]):
    """Change only labels of a container while its processes keep running."""

    def read(self, name: str) -> Current: ...

    def hindrances(self, current: Current, grants: Collection[Grant]) -> tuple[str, ...]:
        """Return the reasons why a running container cannot get these devices before a restart."""

    def relabel(self, current: Current, labels: Mapping[str, str]) -> None:
        """Set these labels of a running container in addition to its others. Idempotent.

        :raises EngineConflict, EngineNotFound: as :meth:`LiveSizes.resize`
        """
