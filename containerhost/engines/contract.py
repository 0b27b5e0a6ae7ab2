# SPDX-License-Identifier: Apache-2.0
"""Define what every container engine offers, in engine-independent terms.

A driver codes against :class:`Containers`, or :class:`Engine` where it needs more, and the records here;
``engines/<name>/`` translates. Times are seconds, sizes bytes. Every method has a time limit and raises only
:mod:`containerhost.errors`.
"""

import dataclasses
import datetime
import enum
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from containerhost.devices.grants import Grant
from containerhost.devices.model import Device
from containerhost.engines.spec import BlockDevice, ContainerSpec, Part
from containerhost.errors import EngineNotFound


class Status(enum.StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"
    FROZEN = "frozen"
    STARTING = "starting"
    STOPPING = "stopping"
    ERROR = "error"


@dataclasses.dataclass(frozen=True)
class ContainerState:
    """Describe one container of the list of all.

    :ivar labels: the driver's own marks, keys as given in ``ContainerSpec.labels``
    :ivar cores: its exclusive cores among containers with an affinity
    :ivar reserved: former cores that it may need again
    :ivar interfaces: configured ones: name in the container -> host interface that moves in
    """

    name: str
    status: Status
    labels: Mapping[str, str]
    last_used: datetime.datetime | None = None
    interfaces: Mapping[str, str] = dataclasses.field(default_factory=dict)
    cores: frozenset[int] = frozenset()
    reserved: frozenset[int] = frozenset()


class InterfaceMetrics(NamedTuple):
    """Count bytes that an interface of a container received and sent since it entered the container.

    :ivar mac: "" where the engine does not report it
    :ivar host_name: the host's end where there is one
    """

    name: str
    mac: str
    host_name: str | None
    received_bytes: int
    received_packets: int
    received_errors: int
    received_dropped: int
    sent_bytes: int
    sent_packets: int
    sent_errors: int
    sent_dropped: int


@dataclasses.dataclass(frozen=True)
class Metrics:
    """Hold the current resource usage of one container.

    :ivar pid: its first process as the host numbers it; None if it is not running
    :ivar cpu_time: nanoseconds of CPU since its start
    :ivar disks: bytes used by disk name; absent where the storage does not report it
    """

    status: Status
    pid: int | None
    processes: int
    cpu_time: int
    memory: int
    memory_peak: int
    swap: int
    disks: Mapping[str, int]
    interfaces: tuple[InterfaceMetrics, ...]


class PoolUsage(NamedTuple):
    """Hold the total and the used bytes of one storage pool.

    :ivar driver: ``zfs``, ``btrfs``, ``lvm``, ``dir``…
    """

    name: str
    driver: str
    total: int
    used: int


class ServerInfo(NamedTuple):
    """Describe the daemon that runs the containers, and its host.

    :ivar architectures: as the kernel names them (``x86_64``), the host's own first
    :ivar certificate: fingerprint of the daemon's certificate, which identifies it; "" where unknown
    """

    name: str
    version: str
    architectures: tuple[str, ...]
    kernel: str
    hostname: str
    certificate: str = ""


KEPT = 64 * 1024  # bytes kept of a command's output, which the tenant controls


class Executed(NamedTuple):
    """Hold the result of a command that ended.

    :ivar status: its exit status; 127 when there is no such program
    :ivar stdout, stderr: the beginning of what it printed, at most :data:`KEPT` bytes of each
    """

    status: int
    stdout: bytes
    stderr: bytes = b""

    @property
    def output(self) -> bytes:
        """Return both outputs, errors last."""
        return self.stdout + self.stderr


class Change(NamedTuple):
    """Name the state that a container has entered; it may have changed since."""

    name: str
    status: Status


class Console(Protocol):
    """Attach to a running container's console until it is closed. One thread may send while another receives."""

    def receive(self) -> bytes | None:
        """Return the next output of the guest; None at the end."""

    def send(self, data: bytes) -> None:
        """Send input to the guest.

        :raises EngineUnavailable: the console has ended
        """

    def close(self) -> None: ...


class Command(Protocol):
    """Run a command in a container until it is closed."""

    def finish(self, stdin: bytes, timeout: int) -> Executed:
        """Send all input to the command and wait for its end.

        :param timeout: seconds, after which it is killed
        :raises EngineTimeout: it was killed
        """

    def kill(self) -> None:
        """Kill the command. May be called from any thread. Idempotent."""

    def close(self) -> None: ...


class Events(Protocol):
    """Receive a stream of changes, until it is closed or the engine stops."""

    def receive(self, timeout: float | None = None) -> Change:
        """Wait for the next change.

        :raises EngineTimeout: no change within ``timeout`` seconds
        :raises EngineUnavailable: the stream has ended
        """

    def close(self) -> None: ...


class Containers(Protocol):
    """Manage containers: the operations that every engine has."""

    name: str

    def server(self) -> ServerInfo: ...

    def containers(self) -> tuple[ContainerState, ...]:
        """Return all containers of this engine's project (one request)."""

    def measured(self) -> tuple[tuple[ContainerState, Metrics], ...]:
        """Return the metrics, without disks, of all running containers, perhaps also of others, in one request.

        A container that ends meanwhile is left out."""

    def container(self, name: str) -> ContainerState:
        """Return the state of one container.

        :raises EngineNotFound:
        """

    def exists(self, name: str) -> bool: ...

    def create(self, spec: ContainerSpec) -> None: ...

    def rename(self, name: str, new: str) -> None:
        """Rename a stopped container."""

    def start(self, name: str) -> None:
        """Start a container. Idempotent."""

    def stop(self, name: str, *, timeout: int, force: bool = False) -> None:
        """Ask its init to end, or kill it with ``force``. Idempotent.

        :raises EngineTimeout: it did not end within ``timeout`` and still runs
        """

    def freeze(self, name: str) -> None: ...

    def unfreeze(self, name: str) -> None: ...

    def delete(self, name: str) -> None:
        """Delete a container and all that belongs to it. Succeeds from every state, missing included."""

    def attach(self, name: str, part: Part) -> None:
        """Attach one more part to a container, stopped or running."""

    def detach(self, name: str, part: Part, remaining: Sequence[Part] = ()) -> None:
        """Detach ``part``; nodes that ``remaining`` shares with it stay.

        :raises DeviceInUse: it is a block device that a process of the running container uses; it stays
        """

    def update_devices(self, name: str, parts: Sequence[Part]) -> None:
        """Replace the parts of a stopped container with exactly these, by their current names on the host."""

    def reconfigure(self, name: str, spec: ContainerSpec) -> None:
        """Change a stopped container to ``spec``, except its image and mounts."""

    def relabel(self, name: str, labels: Mapping[str, str | None]) -> None:
        """Set labels of a container, stopped or running; None removes one. Idempotent."""

    def verify(self, name: str, grants: Sequence[Grant]) -> None:
        """Give a running container those grants that only a running one can have, then check what it sees.

        Such is an RDMA device that is in one network namespace only.

        :raises NotAsGranted: it sees more or less than ``grants``
        """

    def held(self, devices: Iterable[Device]) -> Mapping[str, str]:
        """Return the container of any project that names each device, by device id."""

    def metrics(self, name: str) -> Metrics: ...

    def disks(self, name: str) -> Mapping[str, int] | None:
        """Return ``disks`` of the container's metrics; None, without a request, if the engine never reports them."""

    def pid(self, name: str) -> int | None:
        """Return the host pid of the container's first process; None if it is not running."""

    def console_log(self, name: str) -> bytes:
        """Return what the container has printed on its console since it started."""

    def execute(self, name: str, command: Sequence[str], stdin: bytes, *, timeout: int) -> Executed:
        """Run a command in a running container as its root.

        :raises EngineTimeout: it did not end in time and was killed
        """

    def command(self, name: str, command: Sequence[str]) -> Command:
        """Start a command as :meth:`execute` does; the caller sends its input and closes it.

        :param command: program and arguments; visible to all processes in the container
        :raises EngineError: the container does not run
        """


class Engine(Containers, Protocol):
    """Manage containers with what only LXD and Incus offer: storage pools, fenced disks, consoles and events."""

    def pool(self, name: str) -> PoolUsage: ...

    def forbidden(self) -> str | None:
        """Return everything that the project forbids but its containers need, as text; None if nothing."""

    def set_limits(self, name: str, spec: ContainerSpec) -> None:
        """Set the CPUs, memory, root size and rates of ``spec`` on a container, stopped or running.

        Its devices, and the kernel limits that they need, are unchanged."""

    def root_ids(self, name: str) -> tuple[int, int]:
        """Return the host's user and group ids of the container's root."""

    def require_rescuable(self, name: str) -> None:
        """Refuse unless the container's root disk can be mounted in another container.

        :raises SpecError: another container cannot mount this one's root disk
        """

    def fenced(self, name: str, disk: BlockDevice) -> AbstractContextManager[None]:
        """Fence a disk: no process of the container can open it within the block.

        :raises DeviceInUse: a process uses it
        """

    def restore_fenced(self) -> tuple[str, ...]:
        """Restore disks that killed processes left fenced in running containers; return complaints."""

    def console(self, name: str) -> Console:
        """Attach to the console of a running container.

        :raises EngineError: it does not run
        """

    def events(self) -> Events: ...


def first_process(engine: Containers, name: str) -> int | None:
    """Return the host pid of a container's first process; None if it is missing or not running."""
    try:
        return engine.pid(name)
    except EngineNotFound:
        return None
