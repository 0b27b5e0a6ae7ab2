# SPDX-License-Identifier: Apache-2.0
"""An engine in memory, and the driver's parts over it: what LXD cannot be made to do on demand is done here.

Everything else is real: the allocation records, the allocator and the inventory of an emulated host's tree.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from keystoneauth1 import exceptions as keystone
from nova.scheduler.client import report
from oslo_config import cfg

from containerhost import errors
from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.store import AllocationStore
from containerhost.devices.grants import Grant
from containerhost.devices.model import Device
from containerhost.engines.capabilities import Disk, DiskOffer
from containerhost.engines.contract import ContainerState, Executed, Metrics, PoolUsage, ServerInfo, Status
from containerhost.engines.corebinding import CoreBinding
from containerhost.engines.lxd.client import VersionedInstance
from containerhost.engines.network.veth import Veths
from containerhost.engines.spec import ContainerSpec, Nic, Part
from containerhost.guest.guestnotice import GuestNotice
from containerhost.inventory.scan import HostView
from containerhost.linux.sysfs import Host
from containerhost.privileged import Privileged
from nova_lxd_ext.hardware.allocations import HostSlices, Placement
from nova_lxd_ext.hardware.flavor_devices import FlavorDevices
from nova_lxd_ext.instance import labels
from nova_lxd_ext.instance.flavor import HostCpus
from nova_lxd_ext.instance.states import States
from nova_lxd_ext.network.vifdirect import DirectPorts
from nova_lxd_ext.network.vifevents import VifEvents
from nova_lxd_ext.network.vifplug import Plugs
from nova_lxd_ext.network.vifs import Ports
from nova_lxd_ext.server import deferred
from nova_lxd_ext.server.attachments import DeviceAttachments
from nova_lxd_ext.server.lifecycle import Lifecycle
from nova_lxd_ext.server.liveresize import LiveResize
from nova_lxd_ext.server.power import Power
from nova_lxd_ext.storage.connectors import Connectors
from nova_lxd_ext.storage.ephemerals import Ephemerals
from nova_lxd_ext.storage.volumes import Volumes
from tests.fakehost import description, tree
from tests.unit.nova import records

GPU_0, GPU_1 = "0000:3b:00.0", "0000:af:00.0"
IMAGE = "f" * 64


class Killed(BaseException):
    """The process ends here, as by kill -9: no handler of the driver may see it."""


class FakeEngine:
    """Containers in memory.

    :ivar fail: what to raise when a method is called, by its name
    :ivar asked: names of the methods called, in order
    :ivar deaf: containers whose init ignores the request to shut down
    :ivar used: bytes on every root disk
    :ivar done: how a command in a container ends
    :ivar executed: the commands, each with its standard input
    """

    name = "lxd"

    def __init__(self) -> None:
        self.certificate = "ce471f1ca7e"
        self.specs: dict[str, ContainerSpec] = {}
        self.statuses: dict[str, Status] = {}
        self.fail: dict[str, BaseException] = {}
        self.asked: list[str] = []
        self.deaf: set[str] = set()
        self.refitted: dict[str, Sequence[Part]] = {}
        self.used = 0
        self.done = Executed(0, b"")
        self.executed: list[tuple[tuple[str, ...], bytes]] = []

    def _called(self, method: str, name: str | None = None) -> None:
        self.asked.append(method)
        if method in self.fail:
            raise self.fail[method]
        if name is not None and name not in self.specs:
            raise errors.EngineNotFound(f"{method}: container {name} not found")

    def server(self) -> ServerInfo:
        self._called("server")
        return ServerInfo("lxd", "5.0.2", ("x86_64",), "6.1", "host", self.certificate)

    def forbidden(self) -> str | None:
        return None

    def pool(self, name: str) -> PoolUsage:
        self._called("pool")
        return PoolUsage(name, "dir", 10, 1)

    def root_ids(self, name: str) -> tuple[int, int]:
        self._called("root_ids", name)
        return os.getuid(), os.getgid()  # others cannot be given a file without root

    def _state(self, name: str) -> ContainerState:
        nics = {part.name: part.parent for part in self.specs[name].parts if isinstance(part, Nic)}
        return ContainerState(name, self.statuses[name], self.specs[name].labels, interfaces=nics,
                              cores=self.specs[name].cpu.own_cores, reserved=self.specs[name].cpu.reserved)

    def containers(self) -> tuple[ContainerState, ...]:
        self._called("containers")
        return tuple(map(self._state, self.specs))

    def container(self, name: str) -> ContainerState:
        self._called("container", name)
        return self._state(name)

    def create(self, spec: ContainerSpec) -> None:
        if spec.name in self.specs:
            raise errors.EngineConflict(f"{spec.name} exists")
        self._called("create")
        self.specs[spec.name] = spec
        self.statuses[spec.name] = Status.STOPPED

    def start(self, name: str) -> None:
        self._called("start", name)
        self.statuses[name] = Status.RUNNING

    def stop(self, name: str, *, timeout: int, force: bool = False) -> None:
        self._called("kill" if force else "stop", name)
        if name in self.deaf and not force:
            raise errors.EngineTimeout(f"{name} did not shut down within {timeout} s")
        self.statuses[name] = Status.STOPPED

    def freeze(self, name: str) -> None:
        self._called("freeze", name)
        self.statuses[name] = Status.FROZEN

    def unfreeze(self, name: str) -> None:
        self._called("unfreeze", name)
        self.statuses[name] = Status.RUNNING

    def delete(self, name: str) -> None:
        self._called("delete")
        self.specs.pop(name, None)
        self.statuses.pop(name, None)

    def attach(self, name: str, part: Part) -> None:
        self._called("attach", name)
        self.specs[name] = dataclasses.replace(self.specs[name], parts=(*self.specs[name].parts, part))

    def detach(self, name: str, part: Part, remaining: Sequence[Part] = ()) -> None:
        self._called("detach", name)
        kept = tuple(other for other in self.specs[name].parts if other != part)
        self.specs[name] = dataclasses.replace(self.specs[name], parts=kept)

    @contextlib.contextmanager
    def fenced(self, name: str, disk: Part) -> Iterator[None]:
        self._called("fenced", name)
        yield

    def require_rescuable(self, name: str) -> None:
        self._called("require_rescuable", name)

    def rename(self, name: str, new: str) -> None:
        self._called("rename", name)
        self.specs[new], self.statuses[new] = self.specs.pop(name), self.statuses.pop(name)

    def update_devices(self, name: str, parts: Sequence[Part]) -> None:
        self._called("update_devices", name)
        self.refitted[name] = parts
        self.specs[name] = dataclasses.replace(self.specs[name], parts=tuple(parts))

    def reconfigure(self, name: str, spec: ContainerSpec) -> None:
        self._called("reconfigure", name)
        present = self.specs[name]
        self.specs[name] = dataclasses.replace(spec, image=present.image, mounts=present.mounts)

    def relabel(self, name: str, labels: Mapping[str, str | None]) -> None:
        self._called("relabel", name)
        merged = dict(self.specs[name].labels) | dict(labels)
        self.specs[name] = dataclasses.replace(
            self.specs[name], labels={key: text for key, text in merged.items() if text is not None})

    def set_limits(self, name: str, spec: ContainerSpec) -> None:
        self._called("set_limits", name)
        self.specs[name] = dataclasses.replace(self.specs[name], cpu=spec.cpu, memory=spec.memory, root=spec.root)

    def disks(self, name: str) -> Mapping[str, int] | None:
        return self.metrics(name).disks

    def metrics(self, name: str) -> Metrics:
        self._called("metrics", name)
        return Metrics(self.statuses[name], None, 0, 0, 0, 0, 0, {"root": self.used}, ())

    def pid(self, name: str) -> int | None:
        return None

    def verify(self, name: str, grants: Sequence[Grant]) -> None:
        self._called("verify", name)

    def held(self, devices: Iterable[Device]) -> Mapping[str, str]:
        return {grant.device.id: name for name, spec in self.specs.items() for grant in spec.grants}

    def execute(self, name: str, command: Sequence[str], stdin: bytes, *, timeout: int) -> Executed:
        self._called("execute", name)
        self.executed.append((tuple(command), stdin))
        return self.done

    def console_log(self, name: str) -> bytes:
        self._called("console_log", name)
        return b""


class FakeLive:
    """Changes the containers of an engine in memory.

    :ivar stubborn: why none of them can change while it runs
    :ivar needed: bytes of memory that each of them cannot do without
    """

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self.stubborn: tuple[str, ...] = ()
        self.needed = 0

    def read(self, name: str) -> VersionedInstance:
        labels = self._engine.container(name).labels
        return VersionedInstance({"config": {f"user.{key}": value for key, value in labels.items()}}, "")

    def obstacles(self, current: VersionedInstance, spec: ContainerSpec) -> tuple[str, ...]:
        return self.stubborn

    def memory_in_use(self, name: str) -> int:
        return self.needed

    def await_changes(self, name: str) -> None:
        self._engine._called("await_changes", name)

    def differs(self, current: VersionedInstance, spec: ContainerSpec) -> bool:
        return self._adapted(spec) != self._engine.specs[spec.name]

    def adapt(self, current: VersionedInstance, spec: ContainerSpec) -> None:
        self._engine._called("adapt", spec.name)
        self._engine.specs[spec.name] = self._adapted(spec)

    def replace_devices(self, current: VersionedInstance, spec: ContainerSpec) -> None:
        self._engine._called("replace_devices", spec.name)

    def _adapted(self, spec: ContainerSpec) -> ContainerSpec:
        present = self._engine.specs[spec.name]
        others = tuple(part for part in present.parts if not isinstance(part, Grant))
        return dataclasses.replace(spec, image=present.image, mounts=present.mounts, parts=(*others, *spec.parts))


class FakeFiles:
    """Files of running containers, in memory; all of them have the same.

    :ivar fail: what to raise
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.written: list[bytes] = []
        self.fail: Exception | None = None

    def write(self, name: str, path: str, content: bytes) -> None:
        if self.fail:
            raise self.fail
        self.written.append(content)
        self.files[path] = content

    def read(self, name: str, path: str) -> bytes | None:
        if self.fail:
            raise self.fail
        return self.files.get(path)


class NoPrivileges(Privileged):
    """A static tree reacts to nothing, and no container's process can be on its devices."""

    def reset_gpu(self, vendor: str, address: str, others: Collection[str] = ()) -> None:
        pass

    def set_vf_link(self, netdev: str, index: int, state: str) -> None:
        pass

    def users(self, nodes: Any) -> tuple[str, ...]:
        return ()


class FakeConnectors(Connectors):
    """Volumes that are connected in memory: each is /dev/null.

    :ivar connected: ids, as often as they were connected more than disconnected
    :ivar fail: what to raise when a method is called, by its name
    """

    def __init__(self) -> None:
        self.connected: list[str] = []
        self.fail: dict[str, Exception] = {}

    def _called(self, method: str) -> None:
        if method in self.fail:
            raise self.fail[method]

    def connect(self, volume: str, kind: str, data: Mapping[str, Any],
                too_late: Callable[[Mapping[str, Any]], Any]) -> Mapping[str, Any]:
        self._called("connect")
        if volume not in self.connected:
            self.connected.append(volume)
        return {"path": "/dev/null", "type": kind}

    def disconnect(self, volume: str, kind: str, data: Mapping[str, Any], device: Mapping[str, Any] | None,
                   force: bool = False) -> None:
        self._called("disconnect")
        if volume in self.connected:
            self.connected.remove(volume)

    def extend(self, volume: str, kind: str, data: Mapping[str, Any]) -> int | None:
        self._called("extend")
        return data["size"]


class FakeDisks:
    """The further disks of a storage pool, in memory."""

    pool = "default"

    def __init__(self) -> None:
        self.disks: dict[str, Disk] = {}

    def all(self) -> tuple[Disk, ...]:
        return tuple(self.disks.values())

    def ensure(self, name: str, size: int, labels: Mapping[str, str]) -> None:
        present = self.disks.get(name)
        self.disks[name] = Disk(name, max(size, present.size if present else 0), labels, False)

    def resize(self, name: str, size: int) -> None:
        self.disks[name] = self.disks[name]._replace(size=size)

    def delete(self, name: str) -> None:
        self.disks.pop(name, None)


class FakeDiskTransfers:
    """Disks of this host's pool, and of the others in memory, that go to another host's.

    :ivar fault: what the receiver's daemon says instead of making the disk
    """

    def __init__(self, disks: FakeDisks) -> None:
        self.disks = disks
        self.fault: BaseException | None = None
        self.withdrawn: list[str] = []

    def offer(self, name: str, address: str) -> DiskOffer:
        size = self.disks.disks[name].size
        return DiskOffer(name, f"{address}/1.0/operations/x", "PEM", {"size": str(size)}, {"fs": "secret"})

    def withdraw(self, name: str) -> None:
        self.withdrawn.append(name)

    def fetch(self, offer: DiskOffer, labels: Mapping[str, str], timeout: int) -> None:
        self.disks.ensure(offer.name, int(offer.config["size"]), labels)
        if self.fault:
            raise self.fault


class FakeCopier:
    def __init__(self) -> None:
        self.copied: list[tuple[str, str]] = []

    def copy(self, source: str, target: str) -> None:
        self.copied.append((source, target))


class FakeImages:
    def ensure(self, context: Any, image_meta: Any, root_gb: int, trusted_certs: Any = None) -> str:
        return IMAGE


@dataclasses.dataclass
class World:
    engine: FakeEngine
    owners: AllocationStore
    states: States
    attachments: DeviceAttachments
    lifecycle: Lifecycle
    power: Power
    ports: Ports
    flavor_devices: FlavorDevices
    live: FakeLive
    resize: LiveResize
    files: "FakeFiles"
    notice: GuestNotice
    ephemerals: Ephemerals
    disks: FakeDisks
    disk_transfers: FakeDiskTransfers

    def held(self) -> dict[str, str]:
        """Device id -> container, as the records say."""
        return {device: record.consumer.container for device, record in self.owners.records().items()}


def world(directory: Path, conf: cfg.ConfigOpts, clock: Callable[[], float] | None = None,
          root: Privileged | None = None) -> World:
    """The driver's parts on the emulated host ``small``, as a process that just started has them.

    :param directory: keeps the host and its allocation records; a second world in it is the process after a restart
    """
    if not (directory / "host").exists():
        tree.write(description.load("small"), directory / "host")
    host, root = Host(directory / "host"), root or NoPrivileges()
    engine, owners = FakeEngine(), AllocationStore(directory / "owners")
    allocator = DeviceAllocator(owners, lambda: HostView(host), root, engine.held, host)
    states = States(engine, *[clock] if clock else [])
    slices = HostSlices("host", owners, Placement(lambda: None))
    flavor_devices = FlavorDevices(conf, allocator, slices, lambda: records.NODE)
    veths = Veths(root, host)
    ports = Ports(engine, veths, Plugs(veths), DirectPorts(conf, allocator, lambda: records.NODE),
                  VifEvents(conf, None))
    volumes = Volumes(engine, states, FakeConnectors(), FakeCopier())
    disks = FakeDisks()
    disk_transfers = FakeDiskTransfers(disks)
    ephemerals = Ephemerals(disks, disk_transfers)
    attachments = DeviceAttachments(engine, (flavor_devices, ports, volumes, ephemerals), allocator.view,
                                    directory / "owners")
    cpus = HostCpus({0: frozenset(range(8)), 1: frozenset(range(8, 16))})
    lifecycle = Lifecycle(conf, engine, states, attachments, FakeImages(),
                          CoreBinding(engine, host, directory, labels.UUID), lambda: cpus, lambda *_: None)
    live, files = FakeLive(engine), FakeFiles()
    notice = GuestNotice(files, conf.lxd.shrink_notice)
    return World(engine, owners, states, attachments, lifecycle,
                 Power(conf, engine, states, attachments, *[clock] if clock else []), ports, flavor_devices, live,
                 LiveResize(conf, engine, live, notice, states, attachments, flavor_devices, lifecycle), files, notice,
                 ephemerals, disks, disk_transfers)


class Deferred(deferred.Deferred):
    """Call functions when minutes pass after the start's end."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, Callable[[], None]]] = []

    def call(self, delay: float, uuid: str, function: Callable[..., None], *args: Any) -> None:
        self.calls.append((delay, lambda: function(*args)))

    def minutes_pass(self) -> None:
        while self.calls:
            self.calls.pop(0)[1]()


class Clock:
    """Seconds that pass only when told, or by ``step`` at each look."""

    def __init__(self, step: float = 0.0) -> None:
        self.now = 1000.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def unreachable_placement() -> report.SchedulerReportClient:
    """Return nova's own client, of a service that does not answer: most of its methods only log that."""
    return report.SchedulerReportClient(mock.Mock(**{f"{method}.side_effect": keystone.ConnectFailure
                                                     for method in ("get", "post", "put", "delete")}))
