# SPDX-License-Identifier: Apache-2.0
"""Define what every container engine offers, in no engine's terms.

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
    :ivar last_used: last start; None when it never started
    :ivar cores: those it has for itself among containers with an affinity
    :ivar reserved: those that it had, and may have to have again
    :ivar interfaces: those it is configured with: their names in it -> the host interfaces that move in
    """

    name: str
    status: Status
    labels: Mapping[str, str]
    last_used: datetime.datetime | None = None
    interfaces: Mapping[str, str] = dataclasses.field(default_factory=dict)
    cores: frozenset[int] = frozenset()
    reserved: frozenset[int] = frozenset()


class InterfaceMetrics(NamedTuple):
    """Count what one interface of a container received and sent since it came into the container.

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

    :ivar pid: its first process as the host numbers it; None when it does not run
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

    :ivar name: ``lxd`` or ``incus``
    :ivar architectures: as the kernel names them (``x86_64``), the host's own first
    :ivar certificate: fingerprint of the daemon's certificate, which tells it from every other one; "" where unknown
    """

    name: str
    version: str
    architectures: tuple[str, ...]
    kernel: str
    hostname: str
    certificate: str = ""


KEPT = 64 * 1024  # bytes of a command's output; a tenant decides how much there is


class Executed(NamedTuple):
    """A command that ended.

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
    """Tell which state a container has entered; by the time this is read it may be in another."""

    name: str
    status: Status


class Console(Protocol):
    """A running container's console, attached until it is closed. One thread may send while another receives."""

    def receive(self) -> bytes | None:
        """Return the next output of the guest; None at the end."""

    def send(self, data: bytes) -> None:
        """Send input to the guest.

        :raises EngineUnavailable: the console has ended
        """

    def close(self) -> None: ...


class Command(Protocol):
    """A command that runs in a container, until it is closed."""

    def finish(self, stdin: bytes, timeout: int) -> Executed:
        """Give it all of its input and wait for its end.

        :param timeout: seconds, after which it is killed
        :raises EngineTimeout: it was killed
        """

    def kill(self) -> None:
        """Kill the command. May be called from any thread. Idempotent."""

    def close(self) -> None: ...


class Events(Protocol):
    """A stream of changes, until it is closed or the engine goes away."""

    def receive(self, timeout: float | None = None) -> Change:
        """Wait for the next change.

        :raises EngineTimeout: there was none in ``timeout`` seconds
        :raises EngineUnavailable: it has ended
        """

    def close(self) -> None: ...


class Containers(Protocol):
    """Manage containers: the operations of every engine."""

    name: str

    def server(self) -> ServerInfo: ...

    def containers(self) -> tuple[ContainerState, ...]:
        """Return all containers of this engine's project (one request)."""

    def measured(self) -> tuple[tuple[ContainerState, Metrics], ...]:
        """Return the metrics of all running containers, perhaps of others too, without their disks; in one request.

        A container that ends meanwhile is left out."""

    def container(self, name: str) -> ContainerState:
        """Return the state of one container.

        :raises EngineNotFound:
        """

    def exists(self, name: str) -> bool: ...

    def create(self, spec: ContainerSpec) -> None: ...

    def rename(self, name: str, new: str) -> None:
        """Give a stopped container another name."""

    def start(self, name: str) -> None:
        """Start a container. Idempotent."""

    def stop(self, name: str, *, timeout: int, force: bool = False) -> None:
        """Ask its init to end, or with ``force`` end it; done already when it is stopped.

        :raises EngineTimeout: it did not end within ``timeout`` and still runs
        """

    def freeze(self, name: str) -> None: ...

    def unfreeze(self, name: str) -> None: ...

    def delete(self, name: str) -> None:
        """Delete a container and all that belongs to it. Succeeds from every state, missing included."""

    def attach(self, name: str, part: Part) -> None:
        """Give a container, stopped or running, one more part."""

    def detach(self, name: str, part: Part, remaining: Sequence[Part] = ()) -> None:
        """Take ``part`` away; nodes that ``remaining`` shares with it stay.

        :raises DeviceInUse: it is a block device that a process of the running container uses; it stays
        """

    def update_devices(self, name: str, parts: Sequence[Part]) -> None:
        """Let a stopped container have exactly these parts, as the host calls them now."""

    def reconfigure(self, name: str, spec: ContainerSpec) -> None:
        """Let a stopped container be what ``spec`` says, apart from its image and mounts."""

    def relabel(self, name: str, labels: Mapping[str, str | None]) -> None:
        """Set labels of a container, stopped or running; None removes one. Idempotent."""

    def verify(self, name: str, grants: Sequence[Grant]) -> None:
        """Give a running container the grants that only a running one can have, then look into it.

        Such is an RDMA device that is in one network namespace only.

        :raises NotAsGranted: it sees more or less than ``grants``
        """

    def held(self, devices: Iterable[Device]) -> Mapping[str, str]:
        """Return the container that names each device, by device id, for the containers of any project."""

    def metrics(self, name: str) -> Metrics: ...

    def disks(self, name: str) -> Mapping[str, int] | None:
        """Return ``disks`` of the container's metrics; None, without a request, if the engine never tells them."""

    def pid(self, name: str) -> int | None:
        """Return the host's number of the container's first process; None when it does not run."""

    def console_log(self, name: str) -> bytes:
        """Return what the container has printed on its console since it started."""

    def execute(self, name: str, command: Sequence[str], stdin: bytes, *, timeout: int) -> Executed:
        """Run a command in a running container as its root.

        :raises EngineTimeout: it did not end in time and was killed
        """

    def command(self, name: str, command: Sequence[str]) -> Command:
        """Start a command as :meth:`execute` does; the caller sends its input and closes it.

        :param command: program and arguments; they are visible to everybody in the container
        :raises EngineError: the container does not run
        """


class Engine(Containers, Protocol):
    """Manage containers with what only LXD and Incus offer: storage pools, fenced disks, consoles and events."""

    def pool(self, name: str) -> PoolUsage: ...

    def forbidden(self) -> str | None:
        """Return what the project of the containers forbids of what they need, all of it, in words; None if nothing."""

    def set_limits(self, name: str, spec: ContainerSpec) -> None:
        """Let a container, stopped or running, have the CPUs, memory, root size and speed of ``spec``.

        Its devices, and the kernel limits that they need, stay as they are."""

    def root_ids(self, name: str) -> tuple[int, int]:
        """Return the user and group on this host of the container's root."""

    def require_rescuable(self, name: str) -> None:
        """Refuse unless the container's root disk can be mounted in another container.

        :raises SpecError: another container cannot have this one's root disk beside its own
        """

    def fenced(self, name: str, disk: BlockDevice) -> AbstractContextManager[None]:
        """Fence a disk: in the block no process of the container can open it.

        :raises DeviceInUse: a process uses it
        """

    def restore_fenced(self) -> tuple[str, ...]:
        """Make usable again what killed processes left fenced in running containers; complaints, in words."""

    def console(self, name: str) -> Console:
        """Attach to the console of a running container.

        :raises EngineError: it does not run
        """

    def events(self) -> Events: ...


def first_process(engine: Containers, name: str) -> int | None:
    """Return the number of a container's first process; None when it does not run, or is not there."""
    try:
        return engine.pid(name)
    except EngineNotFound:
        return None
