# SPDX-License-Identifier: Apache-2.0
"""Move a server between two hosts in memory: what the tests of migrations share."""

import dataclasses
import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, ClassVar

import fixtures
import nova.conf
import testtools
from nova import objects
from oslo_utils import units

from containerhost.engines.capabilities import ChangesOffer, Offer
from containerhost.engines.contract import Status
from containerhost.engines.spec import ContainerSpec
from containerhost.guest import resources
from nova_lxd_ext import conf
from nova_lxd_ext.instance.requested import NOTHING
from nova_lxd_ext.server.incoming import IncomingMigrations
from nova_lxd_ext.server.migration import Migrations
from tests.unit.nova import fakes, records
from tests.unit.nova.fakes import GPU_0, GPU_1

conf.register()
OFFER = Offer("instance-0000002a", "https://one:8443/1.0/operations/x", "PEM", {}, {"fs": "secret"}, "x86_64")
MOVE = 7


class Transfers:
    """Fake the transfers of LXD's daemons.

    :ivar fault: what the receiver's LXD says instead of making the container
    :ivar offers, takes: whether the sender and the receiver can transfer differences
    :ivar rounds: is told of each of these
    :ivar with_snapshots: containers that still have what the differences need
    """

    def __init__(self, world: fakes.World) -> None:
        self.world = world
        self.fault: BaseException | None = None
        self.withdrawn: list[str] = []
        self.offers, self.takes = False, True
        self.rounds: Callable[[bool], None] = lambda refresh: None
        self.with_snapshots: set[str] = set()
        self.purged: list[set[str]] = []

    def offer(self, name: str, address: str) -> Offer:
        return OFFER

    def offer_changes(self, name: str, address: str) -> ChangesOffer | None:
        if not self.offers:
            return None
        self.with_snapshots.add("sender")
        return ChangesOffer(**dataclasses.asdict(OFFER), pool_type="btrfs")

    def takes_changes(self, spec: ContainerSpec, offer: ChangesOffer) -> bool:
        return self.takes

    def fetch_changes(self, spec: ContainerSpec, offer: ChangesOffer, timeout: int, refresh: bool) -> None:
        if not refresh:
            self.world.engine.create(spec)
        self.with_snapshots.add("receiver")
        self.rounds(refresh)
        if self.fault:
            raise self.fault

    def drop_snapshots(self, name: str) -> None:
        self.with_snapshots.discard("receiver")

    def withdraw(self, name: str) -> None:
        self.withdrawn.append(name)
        self.with_snapshots.discard("sender")

    def purge(self, names: Collection[str]) -> None:
        self.purged.append(set(names))

    def fetch(self, spec: ContainerSpec, offer: Offer, timeout: int) -> None:
        self.world.engine.create(spec)
        if self.fault:
            raise self.fault


class Bus:
    """Carries what one host's driver asks the other's."""

    def __init__(self, receiver: IncomingMigrations) -> None:
        self.receiver = receiver

    def fetch(self, context: Any, host: str, instance: objects.Instance, offer: dict[str, Any]) -> None:
        self.receiver.receive(context, instance, offer)

    def fetch_changes(self, context: Any, host: str, instance: objects.Instance, offer: dict[str, Any], last: bool
                      ) -> bool:
        return self.receiver.receive_changes(context, instance, offer, last)

    def fetch_disk(self, context: Any, host: str, instance: objects.Instance, offer: dict[str, Any]) -> None:
        self.receiver.receive_disk(context, instance, offer)

    def forget(self, context: Any, host: str, instance: objects.Instance) -> None:
        self.receiver.forget(context, instance)


class MovesCase(testtools.TestCase):
    FLAVOR: ClassVar[dict[str, Any]] = {}

    def setUp(self) -> None:
        super().setUp()
        directories = [Path(self.useFixture(fixtures.TempDir()).path) for _ in range(2)]
        self.tree = directories[0]
        nova.conf.CONF.set_override("owners_dir", str(directories[0] / "owners"), "lxd")
        self.addCleanup(nova.conf.CONF.clear_override, "owners_dir", "lxd")
        self.one = fakes.world(directories[0], nova.conf.CONF)
        (directories[1] / "host").symlink_to(directories[0] / "host")  # the same machine twice
        self.two = fakes.world(directories[1], nova.conf.CONF)
        self.transfers = Transfers(self.two)
        self.incoming = IncomingMigrations(nova.conf.CONF, self.two.engine, self.transfers, self.two.states,
                                           self.two.attachments, self.two.lifecycle, self.two.ephemerals, None)
        self.time = 0.0
        self.here, self.there = self.moves(self.one), self.moves(self.two)
        self.server = records.instance(("gpu", GPU_0), flavor_changes=self.FLAVOR)
        self.one.lifecycle.spawn(None, self.server, objects.ImageMeta(id=records.IMAGE), (), None, NOTHING, True)
        self.large = records.flavor(memory_mb=1024, root_gb=8, **self.FLAVOR)
        self.server.new_flavor = self.large
        self.server.migration_context = objects.MigrationContext(
            migration_id=MOVE, old_pci_devices=self.server.pci_devices, old_pci_requests=self.server.pci_requests,
            new_pci_requests=self.server.pci_requests, new_pci_devices=objects.PciDeviceList(objects=[
                objects.PciDevice(address=GPU_1, request_id=self.server.pci_requests.requests[0].request_id,
                                  compute_node_id=records.NODE)]))
        self.move = objects.Migration(id=MOVE, uuid=records.UUID, source_compute="one", dest_compute="two",
                                      status="migrating")
        self.useFixture(fixtures.MockPatchObject(objects.Migration, "get_by_id", side_effect=lambda *_: self.move))

    def moves(self, world: fakes.World) -> Migrations:
        return Migrations(nova.conf.CONF, world.engine, world.states, world.attachments, world.lifecycle, world.power,
                          world.resize, world.notice, self.transfers, world.ephemerals, Bus(self.incoming),
                          "https://one:8443", lambda *_: None, lambda: self.time)

    def unplug(self, unplugged: bool) -> None:
        """Let the GPU that the server gets on the new host be gone."""
        devices = self.tree / "host/sys/bus/pci/devices"
        names = (GPU_1, "unplugged") if unplugged else ("unplugged", GPU_1)
        (devices / names[0]).rename(devices / names[1])

    def listen(self, prepare: Callable[[], object]) -> None:
        """The guest listens, and does this when something is announced, before it acknowledges."""
        files = self.one.files
        files.files[resources.ACKNOWLEDGED] = b'{"generation": 1}'
        write = files.write

        def written(name: str, path: str, content: bytes) -> None:
            write(name, path, content)
            if announced := json.loads(content)["announced"]:
                prepare()
                files.files[resources.ACKNOWLEDGED] = json.dumps({"generation": announced["generation"]}).encode()
        files.write = written

    def leave(self, flavor: objects.Flavor | None = None) -> None:
        self.here.migrate(None, self.server, flavor or self.large, NOTHING, 0, 0)

    def arrive(self, moves: Migrations) -> None:
        """Finish a migration after changing nova's record as nova does before."""
        self.server.flavor = self.large
        self.server.apply_migration_context()
        moves.finish(None, self.server, NOTHING, True)

    def go_back(self) -> None:
        self.server.flavor = records.flavor(**self.FLAVOR)
        self.server.revert_migration_context()
        self.here.revert(None, self.server, self.move, NOTHING, True)

    def assert_as_it_was(self) -> None:
        self.assertEqual(Status.RUNNING, self.one.engine.statuses[self.server.name])
        self.assertEqual(512 * units.Mi, self.one.engine.specs[self.server.name].memory.size)
        self.assertEqual(({GPU_0: self.server.name}, {}, {}), (self.one.held(), self.two.held(), self.two.engine.specs))
