# SPDX-License-Identifier: Apache-2.0
"""Define what a cloud requests of a container (ContainerSpec), in engine-independent terms.

Clouds translate into it, engines translate out of it; both translations are pure functions. Every value here is
already validated and typed: an engine never parses tenant text.

Small records are named tuples: each action of OpenNebula is a new process, and Python takes three times as long to
define a frozen dataclass.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from containerhost.devices.grants import Grant
from containerhost.linux.network.ipconfig import IpConfig
from hpcplan.affinity import Affinity

# Half of the kernel's default pid_max, so that one container cannot use all process ids.
PROCESSES = 16384


@dataclasses.dataclass(frozen=True)
class Cpu:
    """Describe a container's virtual CPUs and the host cores and NUMA nodes that it is bound to.

    :ivar cores: host cores the container is bound to; empty lets the engine choose ``count`` of them
    :ivar affinity: how the cores are chosen, by :class:`containerhost.engines.corebinding.CoreBinding`
    :ivar choice: the host cores it chooses from; None if the cloud chose the cores
    :ivar ranks: the cores of each MPI process, where the affinity binds them
    :ivar may_revert: the container may be resized back: its former cores stay reserved for it
    :ivar reserved: cores that no other container gets, though it does not run on them
    :ivar nodes: NUMA nodes its memory must come from; empty leaves that to the kernel
    :ivar memory_nodes: those that the kernel may choose from then; empty for all. By
        :class:`containerhost.engines.corebinding.CoreBinding`
    :ivar share: per cent of one core's time, summed over cores (250 is two and a half cores); None is no limit
    :ivar priority: 0 (least) to 10
    """

    count: int
    cores: frozenset[int] = frozenset()
    nodes: frozenset[int] = frozenset()
    memory_nodes: frozenset[int] = frozenset()
    share: int | None = None
    priority: int | None = None
    affinity: Affinity | None = None
    choice: frozenset[int] | None = None
    ranks: tuple[frozenset[int], ...] = ()
    may_revert: bool = False
    reserved: frozenset[int] = frozenset()

    @property
    def is_chosen(self) -> bool:
        """Return whether the host chooses the cores, exclusively among containers with an affinity."""
        return self.affinity not in (None, Affinity.ANY) and self.choice is not None

    @property
    def bound_memory(self) -> frozenset[int]:
        """Return the NUMA nodes that its memory is bound to; empty for none."""
        return self.nodes if self.nodes and self.cores else self.memory_nodes

    @property
    def own_cores(self) -> frozenset[int]:
        return self.cores if self.is_chosen else frozenset()


@dataclasses.dataclass(frozen=True)
class Memory:
    """Describe a container's limits of memory and of huge pages.

    :ivar size: bytes
    :ivar hugepages: bytes of huge pages by page size in bytes
    """

    size: int
    hugepages: Mapping[int, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class IoLimit:
    """Hold the limits of one disk; None is no limit. Bytes or operations per second."""

    read_bytes: int | None = None
    write_bytes: int | None = None
    read_iops: int | None = None
    write_iops: int | None = None


class RootDisk(NamedTuple):
    """Describe a container's root disk in a storage pool.

    :ivar size: bytes; None leaves the pool's default
    """

    pool: str
    size: int | None = None
    io: IoLimit = IoLimit()


@dataclasses.dataclass(frozen=True)
class Nic:
    """Describe a network interface that the cloud created on the host and that moves into the container unchanged."""

    name: str
    parent: str
    mac: str | None = None
    mtu: int | None = None
    setup: IpConfig | None = None


@dataclasses.dataclass(frozen=True)
class BridgedNic:
    """Describe a network interface that the engine creates and plugs into a bridge of the host at each start.

    :ivar host_name: name of its end on the host, by which the cloud's rules find it
    :ivar received: receive limit in bits per second; None is no limit
    :ivar vlan: untagged VLAN on a VLAN-aware bridge; None leaves the bridge's default
    :ivar tagged: VLANs whose tagged frames it may send and receive
    """

    name: str
    bridge: str
    host_name: str
    mac: str
    mtu: int | None = None
    received: int | None = None
    sent: int | None = None
    vlan: int | None = None
    tagged: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True)
class BlockDevice:
    """Describe a block device of the host that the container may use, such as a connected volume."""

    name: str
    source: str
    path: str


@dataclasses.dataclass(frozen=True)
class PoolDisk:
    """Describe an additional disk of the storage pool, with a file system, mounted in the container at ``path``."""

    name: str
    pool: str
    volume: str
    path: str
    io: IoLimit = IoLimit()


@dataclasses.dataclass(frozen=True)
class DirectoryDisk:
    """Describe a directory of the host that the *driver* created, such as a mounted image, mounted at ``path``."""

    name: str
    source: str
    path: str
    read_only: bool = False
    io: IoLimit = IoLimit()


#: What a container has beside its root disk, and may get and lose while it is stopped or runs.
Part = Nic | BridgedNic | BlockDevice | PoolDisk | DirectoryDisk | Grant


def grants_of(parts: Iterable[Part]) -> tuple[Grant, ...]:
    return tuple(part for part in parts if isinstance(part, Grant))


class Mount(NamedTuple):
    """Describe a host directory or file that the *driver* created (never tenant text), mounted at ``target``.

    :ivar follows: later mounts of the host below the directory propagate
    """

    name: str
    source: str
    target: str
    read_only: bool = True
    follows: bool = False


class RescueMount(NamedTuple):
    """Describe the root disk of another, stopped container, writable at ``target``; its files keep their owners."""

    container: str
    target: str


class Security(NamedTuple):
    """Hold how a container is confined: its range of user ids, nested containers and writes to its root disk.

    :ivar read_only: nothing in the container can change its root disk
    """

    privileged: bool = False
    isolated: bool = True
    nesting: bool = False
    read_only: bool = False


class Health(NamedTuple):
    """Describe the health check of the program: a command that the engine runs periodically in the container.

    :ivar interval, timeout, start: seconds; None is the engine's
    """

    command: tuple[str, ...]
    interval: int | None = None
    timeout: int | None = None
    start: int | None = None
    retries: int | None = None


class Program(NamedTuple):
    """Describe the container's program, as arguments, never for a shell; None keeps the image's.

    :ivar user: a name or number of the container's, perhaps with its group: ``1000:1000``
    """

    entrypoint: tuple[str, ...] | None = None
    command: tuple[str, ...] | None = None
    directory: str | None = None
    user: str | None = None
    health: Health | None = None
    hostname: str | None = None


class CloudInit(NamedTuple):
    """Hold the documents for the guest's cloud-init, as the tenant and the cloud wrote them; values only, no keys."""

    meta_data: str | None = None
    user_data: str | None = None
    vendor_data: str | None = None
    network_config: str | None = None


@dataclasses.dataclass(frozen=True)
class ContainerSpec:
    """Describe a container as the cloud wants it, for any engine.

    :ivar image: the engine's name for the image (LXD: fingerprint or alias)
    :ivar labels: the driver's own marks on the container (LXD: ``user.<key>``), never tenant keys
    :ivar processes: most processes and threads at once
    :ivar limits: kernel resource limits by name, e.g. ``memlock``; ``unlimited`` or a number
    :ivar gpu_libraries: driver capabilities (as in GrantOptions) whose libraries a container without a GPU gets at
        its start, for one that it may get while it runs
    """

    name: str
    image: str
    cpu: Cpu
    memory: Memory
    root: RootDisk
    parts: tuple[Part, ...] = ()
    mounts: tuple[Mount, ...] = ()
    security: Security = dataclasses.field(default_factory=Security)
    cloud_init: CloudInit = dataclasses.field(default_factory=CloudInit)
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    limits: Mapping[str, str] = dataclasses.field(default_factory=dict)
    rescue_mount: RescueMount | None = None
    program: Program = dataclasses.field(default_factory=Program)
    gpu_libraries: frozenset[str] = frozenset()
    processes: int = PROCESSES

    @property
    def grants(self) -> tuple[Grant, ...]:
        return grants_of(self.parts)
