# SPDX-License-Identifier: Apache-2.0
"""A compute host: an engine and devices in memory, and the lives of nova-compute on it."""

import dataclasses
import functools
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import nova.conf
from nova import context as nova_context
from nova import exception, objects

from containerhost import errors
from containerhost.allocation.allocator import DeviceAllocator
from containerhost.devices.model import Device
from containerhost.engines.capabilities import ChangesOffer, Offer
from containerhost.engines.contract import Status
from containerhost.engines.corebinding import CoreBinding
from containerhost.engines.network.veth import Veths
from containerhost.engines.spec import ContainerSpec
from containerhost.guest.guestnotice import GuestNotice
from containerhost.inventory.scan import HostView
from nova_lxd_ext import backend, compat
from nova_lxd_ext.hardware.allocations import HostSlices
from nova_lxd_ext.hardware.flavor_devices import FlavorDevices
from nova_lxd_ext.instance import labels
from nova_lxd_ext.instance.flavor import HostCpus
from nova_lxd_ext.instance.states import States
from nova_lxd_ext.network.vifdirect import DirectPorts
from nova_lxd_ext.network.vifevents import VifEvents
from nova_lxd_ext.network.vifplug import Plugs
from nova_lxd_ext.network.vifs import Ports
from nova_lxd_ext.server.attachments import DeviceAttachments
from nova_lxd_ext.server.deferred import Deferred
from nova_lxd_ext.server.incoming import IncomingMigrations
from nova_lxd_ext.server.lifecycle import Lifecycle
from nova_lxd_ext.server.livemigration import LiveMigrations
from nova_lxd_ext.server.liverecovery import LiveRecovery
from nova_lxd_ext.server.liveresize import LiveResize
from nova_lxd_ext.server.migration import Migrations
from nova_lxd_ext.server.power import Power
from nova_lxd_ext.server.recovery import Recovery
from nova_lxd_ext.server.rescue import Rescue
from nova_lxd_ext.storage.ephemerals import Ephemerals
from nova_lxd_ext.storage.volumes import Volumes
from tests.model import inmemory
from tests.model.hardware import Hardware, Reads, Root, pristine
from tests.model.inmemory import Store, View
from tests.model.nova.cloud import Cloud, Killed
from tests.model.nova.compute import RESCUE_IMAGE, Compute
from tests.unit.nova import fakes


class Engine(inmemory.Engine):
    """:ivar arriving: containers whose transfer has not ended, and those that lack changes of the one that runs"""

    def __init__(self, cloud: Cloud) -> None:
        super().__init__()
        self._cloud = cloud
        self.arriving: set[str] = set()

    def _called(self, method: str, name: str | None = None) -> None:
        if method == "server" and self._cloud.stalls:  # that waits for the daemon, longer than it stalls
            self._cloud.stalls = False
            self.go_on()
        self._faulty(method, self._cloud.step("list" if method == "containers" else "engine"))
        super()._called(method, name)

    def restore_fenced(self) -> tuple[str, ...]:
        return ()

    def fetch(self, spec: ContainerSpec, offer: Offer, timeout: int) -> None:
        self.arriving.add(spec.name)
        self.create(spec)
        self._called("fetched")
        self.arriving.discard(spec.name)

    def fetch_changes(self, spec: ContainerSpec, offer: ChangesOffer, timeout: int, refresh: bool) -> None:
        self.arriving.add(spec.name)
        if not refresh:
            self.create(spec)
        assert spec.name in self.specs, "nothing is there to be refreshed"
        self._called("fetched", spec.name)
        if offer.config["status"] == Status.STOPPED.value:
            self.arriving.discard(spec.name)

    def create(self, spec: ContainerSpec) -> None:
        super().create(spec)
        if labels.INCOMING not in spec.labels:
            self.arriving.discard(spec.name)  # whose transfer was killed before

    def delete(self, name: str) -> None:
        super().delete(name)
        self.arriving.discard(name)

    def own_of(self, uuid: str) -> list[str]:
        """Return the containers that have the data of a server, not those that rescue it."""
        return [name for name, spec in self.specs.items()
                if spec.labels.get(labels.UUID) == uuid and spec.image != RESCUE_IMAGE and name not in self.arriving]


class Bus:
    """Carries what one host's driver asks the other's."""

    def __init__(self, cloud: Cloud, hosts: Mapping[str, "Host"]) -> None:
        self._cloud = cloud
        self._hosts = hosts

    def listen(self, host: str, receiver: Any) -> None:
        self._cloud.current.receiver = receiver

    def close(self) -> None:
        pass

    def fetch(self, context: Any, host: str, instance: objects.Instance, offer: dict[str, Any]) -> None:
        self._ask(host, "receive", context, instance, offer)

    def fetch_changes(self, context: Any, host: str, instance: objects.Instance, offer: dict[str, Any], last: bool
                      ) -> bool:
        return bool(self._ask(host, "receive_changes", context, instance, offer, last))

    def fetch_disk(self, context: Any, host: str, instance: objects.Instance, offer: dict[str, Any]) -> None:
        self._ask(host, "receive_disk", context, instance, offer)

    def _ask(self, host: str, method: str, context: Any, instance: objects.Instance, *arguments: Any) -> Any:
        self._cloud.step("bus")
        process = self._hosts[host].process
        if process is None or process.receiver is None:
            raise exception.MigrationError(reason=f"nova-compute on {host} did not answer")
        try:
            with self._cloud.on(process):
                answer = getattr(process.receiver, method)(context, instance.obj_clone(), *arguments)
        except Killed:
            self._hosts[host].process = None
            self._cloud.step("bus")
            raise exception.MigrationError(reason=f"nova-compute on {host} did not answer") from None
        except errors.ContainerHostError as error:
            raise exception.MigrationError(reason=str(error)) from error
        self._cloud.step("bus")
        return answer

    def forget(self, context: Any, host: str, instance: objects.Instance) -> None:
        self._cloud.send(host, "forget", context, instance=instance)


class Glance:
    """The images that the driver boots from and fills."""

    def __init__(self, cloud: Cloud, states: States, engine: Engine) -> None:
        self._cloud, self._states, self._engine = cloud, states, engine

    def ensure(self, context: Any, image_meta: Any, root_gb: int, trusted_certs: Any = None) -> str:
        if image_meta.id not in self._cloud.images:
            raise exception.ImageNotFound(image_id=image_meta.id)
        return str(image_meta.id)

    def take(self, context: Any, instance: objects.Instance, image_id: str, update_task_state: Any) -> None:
        self._states.require(instance)
        update_task_state(task_state="image_pending_upload")
        self._engine._called("export", instance.name)
        update_task_state(task_state="image_uploading", expected_state="image_pending_upload")
        self._cloud.images.add(image_id)

    def purge(self) -> None:
        pass


class Process:
    """One life of nova-compute."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.manager: Any = None
        self.receiver: Any = None


class Host:
    """:ivar devices: the host's, by id
    :ivar offered: ids of those that nova's PCI tracker has as available
    :ivar process: the nova-compute that runs; None while none does
    :ivar scanned: whether the host's files are read, instead of ``devices``, and reads and actions of root are steps
    """

    def __init__(self, name: str, cloud: Cloud, devices: Mapping[str, Device], directory: Path, hosts: dict[str, "Host"]
                 ) -> None:
        self.name, self.cloud, self.directory = name, cloud, directory
        self.node = cloud.nodes[name]
        self.devices = dict(devices)
        self.offered: tuple[str, ...] = ()
        self.engine = Engine(cloud)
        self.process: Process | None = None
        self.boot = 0
        self.hosts = hosts
        self.scanned = False
        self.tree = self._tree()
        self.root: Any = Root(Hardware(pristine()), self._step_of_host)
        self._bus = Bus(cloud, hosts)
        self.store = Store(directory / "owners", self.tree, lambda: cloud.step("records"))
        hosts[name] = self

    def _tree(self) -> Reads:
        host = self

        class Booted(Reads):
            boot_id = property(lambda self: f"boot-{host.boot}")  # type: ignore[assignment]
        return Booted(pristine(), self._step_of_host)

    def _step_of_host(self, what: str) -> str | None:
        return self.cloud.step(what) if self.scanned else None

    def go_on(self) -> None:
        """Let everything go on that did not end in its caller's time."""
        for each in (self.engine, self.tree, self.root):
            each.go_on()

    def begin(self) -> Process:
        """Return a new nova-compute, which has not begun its start."""
        process = Process(self.name)
        with self.cloud.on(process), mock.patch.object(backend, "build", lambda conf, virtapi: self.build(virtapi)):
            process.manager = Compute(self.cloud, self)
        self.process = process
        return process

    def start(self, process: Process) -> None:
        """Let nova-compute start, as nova's service does.

        :raises Exception: it does not come up
        """
        with self.cloud.on(process):
            process.manager.init_host(True)
            self.update(process)

    def update(self, process: Process) -> None:
        """Run nova's periodic update of resources, and what the driver does in it."""
        context, pci = nova_context.get_admin_context(), process.manager.driver._pci
        pci.look(json.dumps([{"address": name} for name, device in self.devices.items() if device.healthy]))
        process.manager.rt.update()
        pci.free_unrequested(context, self.name)
        process.manager.updates = True
        process.manager.driver._backend.deferred.started()
        process.manager.updates = False

    def build(self, virtapi: Any) -> backend.Backend:
        conf, engine, store, tree, root = nova.conf.CONF, self.engine, self.store, self.tree, self.root
        allocator = DeviceAllocator(store, lambda: HostView(tree) if self.scanned else View(self.devices), root,
                                    engine.held, tree)
        states = States(engine, self.cloud.clock)
        flavor_devices = FlavorDevices(conf, allocator, HostSlices(self.name, store, None), lambda: self.node.id)
        veths = Veths(root, tree)
        ports = Ports(engine, veths, Plugs(veths), DirectPorts(conf, allocator, lambda: self.node.id),
                      VifEvents(conf, None))
        volumes = Volumes(engine, states, fakes.FakeConnectors(), fakes.FakeCopier())
        disks = fakes.FakeDisks()
        ephemerals = Ephemerals(disks, fakes.FakeDiskTransfers(disks))
        attachments = DeviceAttachments(engine, (flavor_devices, ports, volumes, ephemerals), allocator.view,
                                        self.directory / "owners")
        glance = Glance(self.cloud, states, engine)
        cpus = HostCpus({0: frozenset(range(8)), 1: frozenset(range(8, 16))})
        lifecycle = Lifecycle(conf, engine, states, attachments, glance,
                              CoreBinding(engine, tree, self.directory, labels.UUID), lambda: cpus)
        power = Power(conf, engine, states, attachments, self.cloud.clock)
        notice = GuestNotice(fakes.FakeFiles(), 0, self.cloud.clock)
        live = LiveResize(conf, engine, fakes.FakeLive(engine), notice, states, attachments, flavor_devices, lifecycle)
        transfers = SimpleNamespace(
            offer=self._offer, withdraw=lambda name: None, purge=lambda names: None, fetch=engine.fetch,
            offer_changes=self._offer_changes, takes_changes=lambda spec, offer: True,
            fetch_changes=engine.fetch_changes, drop_snapshots=functools.partial(engine._called, "drop snapshots"))
        incoming = IncomingMigrations(conf, engine, transfers, states, attachments, lifecycle, ephemerals, virtapi)
        moves = Migrations(conf, engine, states, attachments, lifecycle, power, live, notice, transfers, ephemerals,
                           self._bus, "https://here:8443", clock=functools.partial(next, itertools.count(0, 60)))
        live_moves = LiveMigrations(conf, states, ports, live, moves, incoming, virtapi)
        deferred = Deferred()
        recovery = Recovery(states, lifecycle, power, fakes.FakeLive(engine).await_changes, deferred,
                            lambda: self.cloud.rpc, lambda: self.cloud.placement)
        parts: dict[str, Any] = dict.fromkeys(field.name for field in dataclasses.fields(backend.Backend))
        return backend.Backend(**parts | {
            "host": tree, "engine": engine, "images": glance, "snapshots": glance, "flavor_devices": flavor_devices,
            "states": states, "lifecycle": lifecycle, "power": power, "ports": ports, "volumes": volumes,
            "peers": self._bus, "rescue": Rescue(conf, engine, states, lifecycle, power, attachments, glance),
            "recovery": recovery, "deferred": deferred, "incoming": incoming, "moves": moves, "live_moves": live_moves,
            "live_recovery": LiveRecovery(lambda: compat.manager(virtapi), states, live_moves, deferred)})

    def _offer(self, name: str, address: str) -> Offer:
        self.engine._called("offer", name)
        return Offer(name, address, "PEM", {}, {"fs": "secret"}, "x86_64")

    def _offer_changes(self, name: str, address: str) -> ChangesOffer:
        self.engine._called("snapshot", name)
        status = self.engine.statuses[name].value
        return ChangesOffer(name, address, "PEM", {"status": status}, {"fs": "secret"}, "x86_64", "btrfs")
