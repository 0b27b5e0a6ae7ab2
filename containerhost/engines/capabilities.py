# SPDX-License-Identifier: Apache-2.0
"""Define what some engines offer beside containers: images, pool disks, transfers, exports, snapshots, live changes.

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


class ImageStore(Protocol):
    """Images that containers are made of."""

    def find(self, alias: str) -> Image | None: ...

    def all(self) -> tuple[Image, ...]:
        """Return all images, by fingerprint."""

    def having(self, name: str) -> tuple[Image, ...]:
        """Return all images with a property ``name``, by fingerprint."""

    def unnamed(self, prefix: str) -> tuple[Image, ...]:
        """Return the images without an alias that were meant for one with this prefix: left by killed imports."""

    def import_split(self, metadata: bytes, rootfs: BinaryIO, alias: str, properties: Mapping[str, str]) -> str:
        """Import a root file system with its metadata tarball, and return the fingerprint of both.

        :param rootfs: a file; read from its beginning, perhaps twice
        """

    def delete(self, fingerprint: str) -> None:
        """Delete an image. Idempotent; containers made from it stay."""


class Disk(NamedTuple):
    """Describe one further disk of a storage pool.

    :ivar size: bytes; 0 where none was asked for
    :ivar labels: the marks it was made with
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
        """Make the disk; one with the same labels that is there already keeps its content, and grows if it is smaller.

        :param size: bytes
        :raises StorageFull:
        :raises EngineConflict: there is one of that name with other labels
        """

    def resize(self, name: str, size: int) -> None:
        """Give the disk another size; its content stays.

        :param size: bytes
        :raises EngineError: the pool's type cannot, or there is more on the disk
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
    :ivar secrets: by channel; they give access to the disk, so they are shown nowhere
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
    """Hold all that a receiver needs to fetch a container that may run, or what of it has changed since.

    :ivar pool_type: of the sender's storage pool
    """

    pool_type: str


class Transfers(Protocol):
    """Move containers from one daemon to another; the receiver fetches.

    One that runs is copied in rounds, each of which brings what has changed since the one before; the last one follows
    when it is stopped.
    """

    def offer(self, name: str, address: str) -> Offer:
        """Begin to send a stopped container to the receiver of the offer; it stays here as it is.

        :param address: ``https://host:port`` at which receivers reach this daemon
        """

    def offer_changes(self, name: str, address: str) -> ChangesOffer | None:
        """Begin to send a container, which may run, as it is now; until :meth:`withdraw` it has a snapshot for that.

        :param address: ``https://host:port`` at which receivers reach this daemon
        :returns: None if the engine, or the container's pool, cannot send differences
        """

    def withdraw(self, name: str) -> None:
        """End every transfer of the container that is going on; its receiver is left with nothing.

        Snapshots that :meth:`offer_changes` made are removed."""

    def purge(self, names: Collection[str]) -> None:
        """Withdraw those of these containers that have such snapshots: withdrawing them had failed."""

    def fetch(self, spec: ContainerSpec, offer: Offer, timeout: int) -> None:
        """Make the container ``spec`` with the offered one's files; it is stopped.

        :param timeout: seconds until it is there
        """

    def takes_changes(self, spec: ContainerSpec, offer: ChangesOffer) -> bool:
        """Return whether this engine, and the pool of ``spec``, can receive differences of the offered container."""

    def fetch_changes(self, spec: ContainerSpec, offer: ChangesOffer, timeout: int, refresh: bool) -> None:
        """Make the container ``spec``, or let the one that a former offer made have the offered one's files.

        After an error the container has any of both states, and is of no use.

        :param timeout: seconds until it is there
        :param refresh: it is there already; its configuration stays
        """

    def drop_snapshots(self, name: str) -> None:
        """Remove all snapshots of a container that was fetched; no further difference can follow."""


class DiskTransfers(Protocol):
    """Move further disks of a storage pool from one daemon to another; the receiver fetches."""

    def offer(self, name: str, address: str) -> DiskOffer:
        """Begin to send a disk without writers to the receiver of the offer; it stays here as it is.

        :param address: ``https://host:port`` at which receivers reach this daemon
        """

    def withdraw(self, name: str) -> None:
        """End every transfer of the disk that is going on."""

    def fetch(self, offer: DiskOffer, labels: Mapping[str, str], timeout: int) -> None:
        """Make a disk with the offered one's name, size and files.

        :param labels: its marks here
        :param timeout: seconds until it is there
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
    """A file that is read once, from its beginning to its end.

    :ivar done: bytes read
    """

    done: int

    def read(self, size: int = ...) -> bytes:
        """Return the next piece, of the reader's own size whatever is asked for; empty at the end."""


class Exports(Protocol):
    """Export a container's root as one file."""

    def take(self, name: str, key: str) -> Source:
        """Hold the container's root as it is now.

        :param key: identifies this export
        """

    def pack(self, source: Source, key: str, progress: Callable[[int], None]) -> Packed:
        """Let the engine write the root into one file of its image store.

        :param progress: gets the percentage from time to time; what it raises ends the waiting
        :raises StorageFull: the engine's disk has no room for the file
        :raises EngineTimeout: not done within the limit
        """

    def reading(self, packed: Packed) -> AbstractContextManager[Reader]: ...

    def discard(self, name: str, key: str) -> None:
        """Remove all that an export made. Idempotent.

        :param name: the container; "" where it is gone
        """

    def purge(self, names: Collection[str], running: Collection[str]) -> tuple[str, ...]:
        """Remove what interrupted exports left of containers.

        :param names: the containers
        :param running: keys of exports that are not over
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
        """Let a stopped container's disk be what it was."""


class Labelled(Protocol):
    """Describe a container as one request returned it."""

    def label(self, key: str) -> str | None:
        """Return one of the driver's own labels."""


Current = TypeVar("Current", bound=Labelled)


class LiveChanges(Protocol[Current]):
    """Change CPUs, memory, root disk and devices of a container while its processes go on.

    A caller looks at the container once; what it saw tells what is to be done, and is what the first step changes.
    """

    def look(self, name: str) -> Current: ...

    def obstacles(self, current: Current, spec: ContainerSpec) -> tuple[str, ...]:
        """Return, in words, what keeps the running container from becoming ``spec`` without a restart.

        :param spec: of its parts only the grants count: all others stay as they are
        """

    def await_changes(self, name: str) -> None:
        """Wait for changes of the container that a caller which is gone began."""

    def differs(self, current: Current, spec: ContainerSpec) -> bool:
        """Return whether the running container is not what ``spec`` says."""

    def memory_in_use(self, name: str) -> int:
        """Return the bytes that its processes cannot do without."""

    def adapt(self, current: Current, spec: ContainerSpec) -> None:
        """Let the running container be what ``spec`` says; it has no :meth:`obstacles`. Repeatable.

        On an error some steps are done and some are not."""

    def replace_devices(self, current: Current, spec: ContainerSpec) -> None:
        """Take everything granted from the running container and give it the grants of ``spec``."""


class Size(NamedTuple):
    """Hold the cores and the memory assigned to a running container.

    :ivar cores: of the host, by which the container is bound
    :ivar memory: bytes
    """

    cores: frozenset[int]
    memory: int


class LiveSizes(Protocol[Current]):
    """Change cores, memory and labels of a container while its processes go on, and nothing else of it."""

    def look(self, name: str) -> Current:
        """Return the container.

        :raises EngineNotFound: there is none, or the driver did not make it
        """

    def resize(self, current: Current, size: Size, labels: Mapping[str, str]) -> None:
        """Let the running container have a size, and these labels beside its others. May be repeated.

        :raises EngineConflict: it does not run, or is not what ``current`` tells any more: nothing is changed
        :raises EngineNotFound: it is gone, also where another one has its name
        :raises UnsupportedOnHost: a core is offline
        """


class LiveMarks(Protocol[Current]):
    """Change labels of a container while its processes go on, and nothing else of it."""

    def look(self, name: str) -> Current: ...

    def hindrances(self, current: Current, grants: Collection[Grant]) -> tuple[str, ...]:
        """Return why a running container cannot get these devices before it is started again, in words."""

    def relabel(self, current: Current, labels: Mapping[str, str]) -> None:
        """Let the running container have these labels beside its others. May be repeated.

        :raises EngineConflict, EngineNotFound: as :meth:`LiveSizes.resize`
        """
