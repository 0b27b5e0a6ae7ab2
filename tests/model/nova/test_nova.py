# SPDX-License-Identifier: Apache-2.0
"""Sequences of what nova asks of the driver on two hosts, with faults, kills, restarts and late messages in between."""

import contextlib
import dataclasses
import functools
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import nova.conf
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from nova import context as nova_context
from nova import exception, objects
from nova.compute import vm_states
from oslo_messaging import conffixture

from containerhost.allocation.states import State
from containerhost.devices.model import Device, Kind
from containerhost.engines.contract import Status
from containerhost.engines.spec import grants_of
from containerhost.inventory.scan import scan
from containerhost.linux.sysfs import Host as Tree
from nova_lxd_ext import conf
from tests.fakehost import description, tree
from tests.model import frame
from tests.model.disk import Disk
from tests.model.nova import api, cloud, placement
from tests.model.nova.cloud import EXPECTED, Killed
from tests.model.nova.compute import RESCUE_IMAGE
from tests.model.nova.host import Host, Process

conf.register()
conffixture.ConfFixture(nova.conf.CONF)  # registers the options of nova's RPC client
SERVERS = 3  # at a time
SHELVED = (vm_states.SHELVED, vm_states.SHELVED_OFFLOADED)
POWER = ("stop", "start", "soft reboot", "hard reboot", "pause", "unpause", "suspend", "resume")
IMAGES = ("rescue", "unrescue", "snapshot", "shelve", "rebuild")
ENDS = ("confirm", "revert", "delete", "lock")
faults = st.lists(st.tuples(st.integers(0, 40), st.sampled_from(cloud.FAULTS)), max_size=2)
size_name = st.sampled_from(list(api.FLAVORS))
host_name = st.sampled_from(["one", "two"])


def gpus() -> dict[str, Device]:
    """Return the GPUs of the emulated host ``small``."""
    with tempfile.TemporaryDirectory() as directory:
        tree.write(description.load("small"), Path(directory) / "host")
        return {device.id: device for device in scan(Tree(Path(directory) / "host")).devices
                if device.kind is Kind.GPU}


GPUS = gpus()


class Nova(frame.Machine):
    """:ivar lost: servers whose data their owner has given up by a rebuild or a deletion
    :ivar deleted: those whose deletion was requested, which a kill may undo in nova's records alone
    :ivar reverting: servers whose resize is being reverted
    :ivar evacuated: to which host servers were evacuated: nova removes their disks when the old one returns, also where
        the evacuation fails
    :ivar off: hosts from which servers were evacuated and which have not come up since: the scheduler chooses none
    :ivar late: servers with a resize that begins after their host's start has cleared its task state: nova writes its
        old record of the server over what was done since, also over which image has the data of a shelved one
    """

    def __init__(self) -> None:
        super().__init__()
        self._stack = contextlib.ExitStack()
        directory = Path(tempfile.mkdtemp(prefix="model-"))
        self._stack.callback(shutil.rmtree, directory)
        for name, value, group in (("instances_path", str(directory / "instances"), None),
                                   ("owners_dir", str(directory), "lxd"), ("ready_timeout", 0, "lxd"),
                                   ("live_migration", "restart", "lxd")):
            nova.conf.CONF.set_override(name, value, group)
            self._stack.callback(nova.conf.CONF.clear_override, name, group)
        self.cloud = cloud.Cloud()
        cloud.install(self.cloud, self._stack)
        self.cloud.images |= {api.BASE_IMAGE, RESCUE_IMAGE}
        self.late: set[str] = set()
        self.off: set[str] = set()
        self.hosts: dict[str, Host] = {}
        for number, name in enumerate(("one", "two"), 1):
            (directory / name).mkdir()
            self.cloud.nodes[name] = objects.ComputeNode(id=number, uuid=self.cloud.new_uuid(), host=name,
                                                         hypervisor_hostname=name)
            self.start(Host(name, self.cloud, GPUS, directory / name, self.hosts))
        self.cloud.process_of = lambda host: self.hosts[host].process
        self.cloud.ended = lambda host: setattr(self.hosts[host], "process", None)
        self.cloud.restart_other = lambda host: self.restart_service(self.other(self.hosts[host]))
        self.cloud.end_all = self._end_all
        self.disk = Disk(directory, self.cloud.step)
        self.lost: set[str] = set()
        self.deleted: set[str] = set()
        self.reverting: set[str] = set()
        self.evacuated: dict[str, str] = {}
        api.boot(self.cloud, "one", api.FLAVORS["1 GPU, 512 MiB"])
        self.drain()

    # Parts of the rules

    def servers(self, wanted: Callable[[objects.Instance], bool] = lambda server: True) -> list[str]:
        return [uuid for uuid, server in self.cloud.instances.items() if wanted(server)]

    def other(self, host: Host) -> Host:
        return self.hosts["two" if host.name == "one" else "one"]

    def start(self, host: Host) -> None:
        """Start nova-compute. It comes up, or it was killed once more or the engine failed."""
        process = host.begin()
        self._run(host, process, lambda: host.start(process), starting=True)
        if host.process is not None:
            self.off.discard(host.name)
        for message in (message for queue in self.cloud.queues.values() for message in queue):
            server = self.cloud.instances.get(getattr(message.arguments.get("instance"), "uuid", ""))
            if message.method == "prep_resize" and server is not None and server.task_state is None:
                self.late.add(server.uuid)

    def restart_service(self, host: Host) -> None:
        if host.process is not None:
            host.process.alive = False
        self.start(host)

    def _run(self, host: Host, process: Process, action: Callable[[], Any], starting: bool = False) -> None:
        planned = bool(self.cloud.faults)
        try:
            with self.cloud.on(process):
                action()
        except Killed:
            self.count("killed")
            if host.process is process:
                host.process = None
        except EXPECTED as error:
            self.count(f"refused: {type(error).__name__}")
            assert not starting or planned, f"nova-compute does not start: {error}"
            if starting:
                host.process = None
        self.cloud.stalls = False
        for each in self.hosts.values():
            each.go_on()

    def drain(self, limit: int = 200) -> None:
        """Deliver messages to the hosts that are up, one after the other."""
        for _ in range(limit):
            ready = [host for host in self.hosts.values() if host.process and self.cloud.queues[host.name]]
            if not ready:
                return
            host = min(ready, key=lambda host: self.cloud.queues[host.name][0].number)
            message = self.cloud.queues[host.name].popleft()
            assert host.process is not None
            method = getattr(host.process.manager, message.method)
            self._run(host, host.process, functools.partial(method, message.context, **message.arguments))

    def _finish(self, faults: list[tuple[int, str]], late: bool) -> None:
        """Deliver all messages, or only one; the others come later."""
        self.cloud.faults = list(faults)
        self.drain(1 if late else 200)
        self.cloud.faults = []

    # Rules: the user's requests

    @precondition(lambda self: len(self.cloud.instances) < SERVERS)
    @rule(host=host_name, size=size_name, faults=faults)
    def boot(self, host: str, size: str, faults: Any) -> None:
        api.boot(self.cloud, self.scheduled(host), api.FLAVORS[size])
        self._finish(faults, False)

    def scheduled(self, host: str) -> str:
        return self.other(self.hosts[host]).name if host in self.off else host

    def _possible(self) -> list[tuple[str, str]]:
        return [(name, uuid) for uuid, server in self.cloud.instances.items() for name in api.REQUESTS
                if api.takes(self.cloud, name, server)]

    def note(self, name: str, uuid: str) -> None:
        """Note what a request gives up."""
        for requests, uuids in ((("rebuild", "delete"), self.lost), (("delete",), self.deleted),
                                (("revert",), self.reverting)):
            if name in requests:
                uuids.add(uuid)
        if name == "rebuild":
            self.evacuated.pop(uuid, None)

    def _request(self, data: Any, names: Collection[str], faults: Any, late: bool) -> None:
        name = data.draw(st.sampled_from(sorted({name for name, _ in self._possible() if name in names})), "request")
        uuid = data.draw(st.sampled_from([uuid for other, uuid in self._possible() if other == name]), "server")
        self.note(name, uuid)
        self.count(name)
        api.send(self.cloud, name, uuid)
        self._finish(faults, late)

    @precondition(lambda self: any(name in POWER for name, _ in self._possible()))
    @rule(data=st.data(), faults=faults, late=st.booleans())
    def power(self, data: Any, faults: Any, late: bool) -> None:
        self._request(data, POWER, faults, late)

    @precondition(lambda self: any(name in IMAGES for name, _ in self._possible()))
    @rule(data=st.data(), faults=faults, late=st.booleans())
    def images(self, data: Any, faults: Any, late: bool) -> None:
        self._request(data, IMAGES, faults, late)

    @precondition(lambda self: any(name in ENDS for name, _ in self._possible()))
    @rule(data=st.data(), faults=faults, late=st.booleans())
    def ends(self, data: Any, faults: Any, late: bool) -> None:
        self._request(data, ENDS, faults, late)

    def _movable(self) -> list[str]:
        return self.servers(lambda server: server.host is not None and server.task_state is None
                            and server.vm_state in (vm_states.ACTIVE, vm_states.STOPPED))

    @precondition(lambda self: self._movable())
    @rule(data=st.data(), host=host_name, size=size_name, faults=faults, late=st.booleans())
    def resize(self, data: Any, host: str, size: str, faults: Any, late: bool) -> None:
        uuid = data.draw(st.sampled_from(self._movable()), "server")
        server, host = self.cloud.instances[uuid], self.scheduled(host)
        if server.flavor.id == api.FLAVORS[size].id and server.host == host:
            host = self.other(self.hosts[host]).name
            if host in self.off:
                return
        self.count("resize" if server.host == host else "resize to another host")
        api.resize(self.cloud, uuid, host, api.FLAVORS[size])
        self._finish(faults, late)

    def _migratable(self) -> list[str]:
        """Return servers for which the scheduler finds another host."""
        return [uuid for uuid in self._movable()
                if self.other(self.hosts[self.cloud.instances[uuid].host]).name not in self.off]

    @precondition(lambda self: self._migratable())
    @rule(data=st.data(), faults=faults, late=st.booleans())
    def migrate(self, data: Any, faults: Any, late: bool) -> None:
        """Migrate a server to the other host with the size it has."""
        uuid = data.draw(st.sampled_from(self._migratable()), "server")
        server = self.cloud.instances[uuid]
        self.count("migrate")
        api.resize(self.cloud, uuid, self.other(self.hosts[server.host]).name, server.flavor)
        self._finish(faults, late)

    def _live_movable(self) -> list[str]:
        return self.servers(lambda server: server.host is not None and server.task_state is None
                            and server.vm_state == vm_states.ACTIVE)

    @precondition(lambda self: self._live_movable())
    @rule(data=st.data(), faults=faults, late=st.booleans())
    def migrate_live(self, data: Any, faults: Any, late: bool) -> None:
        """Migrate a running server live to the other host, by a restart."""
        uuid = data.draw(st.sampled_from(self._live_movable()), "server")
        self.count("migrate live")
        try:
            api.migrate_live(self.cloud, uuid, self.other(self.hosts[self.cloud.instances[uuid].host]).name)
        except exception.MigrationError:
            self.count("refused: live migration")
            return
        self._finish(faults, late)

    def _evacuable(self) -> list[str]:
        """Return servers for which the scheduler finds another host, which is up.

        Not those in ERROR: when their host returns nova leaves their task state (doc/source/operations.md)."""
        return [uuid for uuid in self._movable()
                if self.other(self.hosts[self.cloud.instances[uuid].host]).process is not None]

    @precondition(lambda self: self._evacuable())
    @rule(data=st.data(), faults=faults, late=st.booleans())
    def evacuate(self, data: Any, faults: Any, late: bool) -> None:
        """Evacuate a server from its host, which is off from now on."""
        uuid = data.draw(st.sampled_from(self._evacuable()), "server")
        host = self.hosts[self.cloud.instances[uuid].host]
        self.count("evacuate")
        self.fail_host(host)
        self.off.add(host.name)
        self.evacuate_to(self.other(host).name, uuid)
        self._finish(faults, late)

    def evacuate_to(self, host: str, uuid: str) -> None:
        self.note("rebuild", uuid)
        self.evacuated[uuid] = host
        api.evacuate(self.cloud, uuid, host)

    def _shelved(self) -> list[str]:
        return self.servers(lambda server: server.vm_state == vm_states.SHELVED_OFFLOADED and server.task_state is None)

    @precondition(lambda self: self._shelved())
    @rule(data=st.data(), host=host_name, faults=faults, late=st.booleans())
    def unshelve(self, data: Any, host: str, faults: Any, late: bool) -> None:
        self.count("unshelve")
        api.unshelve(self.cloud, data.draw(st.sampled_from(self._shelved()), "server"), self.scheduled(host))
        self._finish(faults, late)

    # Rules: the hosts

    @rule(host=host_name, faults=faults)
    def restart(self, host: str, faults: Any) -> None:
        """Restart nova-compute, or start it after it was killed."""
        self.cloud.faults = list(faults)
        self.restart_service(self.hosts[host])
        self._finish([], False)

    @rule(host=host_name)
    def reboot_host(self, host: str) -> None:
        """Restart the machine: all containers are off."""
        self.fail_host(self.hosts[host])
        self.start(self.hosts[host])
        self._finish([], False)

    def cut_power(self, choice: int) -> int:
        """Cut the power of both hosts.

        :param choice: which of the states that their disks may have afterwards they have
        :returns: how many states there are
        """
        choices = self.disk.cut_power(choice)
        for host in self.hosts.values():
            self.fail_host(host)
        return choices

    def _end_all(self) -> None:
        for host in self.hosts.values():
            if host.process is not None:
                host.process.alive = False
                host.process = None

    def fail_host(self, host: Host) -> None:
        """Let a machine be off, with all its containers."""
        if host.process is not None:
            host.process.alive = False
            host.process = None
        host.boot += 1
        host.engine.statuses = dict.fromkeys(host.engine.statuses, Status.STOPPED)

    @rule(host=host_name, device=st.sampled_from(sorted(GPUS)), state=st.sampled_from(["well", "sick", "gone"]))
    def change_device(self, host: str, device: str, state: str) -> None:
        devices = self.hosts[host].devices
        devices.pop(device, None)
        if state != "gone":
            health = ("it fell off the bus",) if state == "sick" else ()
            devices[device] = dataclasses.replace(GPUS[device], health=health)

    @rule(host=host_name)
    def periodic_tasks(self, host: str) -> None:
        process = self.hosts[host].process
        if process is not None:
            self._run(self.hosts[host], process, lambda: self.hosts[host].update(process))
            self._run(self.hosts[host], process, lambda: process.manager._cleanup_running_deleted_instances(
                nova_context.get_admin_context()))

    @rule()
    def deliver(self) -> None:
        self._finish([], False)

    @rule(host=host_name)
    def minutes_pass(self, host: str) -> None:
        while timers := self.cloud.timers.pop(host, []):
            if (process := self.hosts[host].process) is not None:
                for timer in timers:
                    self._run(self.hosts[host], process, timer.run)
        self._finish([], False)

    # What always holds

    @invariant()
    def holds(self) -> None:
        for defect in self.cloud.defects:
            raise defect
        self.data_is_there()
        self.servers_run_once()
        self.devices_are_exclusive()

    def data_is_there(self) -> None:
        """What nova places on a host and nobody gave up is there, whatever else is wrong."""
        for uuid, server in self.cloud.instances.items():
            if uuid in self.lost or server.vm_state in (vm_states.BUILDING, vm_states.DELETED):
                if (server.vm_state == vm_states.ACTIVE and server.task_state is None and uuid not in self.deleted
                        and server.host == self.evacuated.get(uuid, server.host)):
                    self.lost.discard(uuid)  # it was rebuilt
                continue
            if server.launched_at is None or uuid in self.late:
                continue  # its boot failed, and nova lets its user stop it; or it is nova that loses it
            shelved = server.system_metadata.get("shelved_image_id")
            # Nova's late prep_resize lets an offloaded server fail; its data are in its image nevertheless.
            if shelved in self.cloud.images and (server.host is None or server.vm_state in SHELVED):
                continue
            if server.vm_state in (vm_states.ACTIVE, vm_states.STOPPED) and server.task_state is None:
                self.reverting.discard(uuid)
            # Nova places a server on the new host until the old one has it back.
            reverts = uuid in self.reverting
            places = self.hosts.values() if reverts else [self.hosts[server.host]] if server.host else []
            assert any(host.engine.own_of(uuid) for host in places), (
                f"the data of server {uuid} ({server.vm_state}, {server.task_state}) on {server.host} are gone")

    def servers_run_once(self) -> None:
        for uuid in self.cloud.instances:
            hosts = [name for name, host in self.hosts.items() for own in host.engine.own_of(uuid)
                     if host.engine.statuses[own] is Status.RUNNING]
            assert len(hosts) < 2, f"server {uuid} runs on {hosts}"

    def devices_are_exclusive(self) -> None:
        for host in self.hosts.values():
            users: dict[str, str] = {}
            records = host.store.records()
            for name, spec in host.engine.specs.items():
                for grant in grants_of(spec.parts):
                    other = users.setdefault(grant.device.id, name)
                    assert other == name, f"{other} and {name} on {host.name} have {grant.device.id}"
                    record = records.get(grant.device.id)
                    assert record and record.consumer.container == name, f"{name} has {grant.device.id}: {record}"

    # The end: everything is repaired, and then deleted

    def settle(self) -> None:
        """Let all that may still come come: repairs, restarts, late messages."""
        for host in self.hosts.values():
            host.devices = dict(GPUS)
        for _ in range(2):
            for host in self.hosts.values():
                self.restart_service(host)
            self.drain()
            for name in self.hosts:
                self.minutes_pass(name)
            for host in self.hosts.values():
                self.periodic_tasks(host.name)
            for state, advised in ((vm_states.ERROR, "hard reboot"), (vm_states.SHELVED, "shelve offload")):
                for uuid in self.servers(lambda server, state=state: server.vm_state == state):
                    if api.takes(self.cloud, advised, self.cloud.instances[uuid]):
                        api.send(self.cloud, advised, uuid)
                        self.drain()

    def nothing_pends(self) -> None:
        for uuid, server in self.cloud.instances.items():
            assert server.task_state is None or uuid in self.late, (
                f"server {uuid} stays in task state {server.task_state}")
        under_way = {move.uuid for move in self.cloud.migrations.values() if move.status in ("finished", "confirming")}
        servers = {uuid for uuid, server in self.cloud.instances.items()}
        strangers = self.cloud.placement.allocations.keys() - under_way - servers
        assert not strangers, f"Placement has allocations of nobody: {strangers}"
        self.allocations_are_of_their_hosts()
        for host in self.hosts.values():
            # The devices of a server whose boot, rebuild, revert or deletion failed stay its own until it is rebuilt or
            # that is repeated; nova lets its user stop it meanwhile.
            failed = self.lost | self.reverting | set(self.servers(lambda server: server.launched_at is None))
            kept = {server.name for uuid, server in self.cloud.instances.items() if server.host == host.name and (
                uuid in self.deleted or (server.vm_state in (vm_states.ERROR, vm_states.STOPPED) and uuid in failed))}
            for device, record in host.store.records().items():
                name = record.consumer.container
                assert record.state is State.BLOCKED or name in kept | host.engine.specs.keys(), (
                    f"{device} is kept for {name}")

    def allocations_are_of_their_hosts(self) -> None:
        """Each server has what its flavor asks for of its own host in Placement, and of no other.

        When an arrival has failed, nova gives the server its old flavor back and leaves it the allocation of the new
        one (ComputeManager.finish_resize). A move of an evacuated server takes along the allocation of the host that
        has not returned, which that host's start does not find then; it is the server's again if the move ends."""
        for uuid, server in self.cloud.instances.items():
            if server.vm_state not in (vm_states.ACTIVE, vm_states.STOPPED) or uuid in self.late:
                continue
            sizes = [server.flavor.vcpus, *(size.vcpus for move in self.cloud.migrations.values()
                                            for size in api.FLAVORS.values()
                                            if move.instance_uuid == uuid and move.status == "error"
                                            and size.id == move.new_instance_type_id)]
            held, own = self.cloud.placement.allocations.get(uuid, {}), self.cloud.nodes[server.host].uuid
            if uuid in self.cloud.placement.moved_of_two:
                held = {provider: resources for provider, resources in held.items() if provider == own}
            wanted = [{own: {"resources": {placement.VCPU: size}}} for size in sizes]
            assert held in wanted, f"server {uuid} ({server.vm_state} on {server.host}) holds {held}, not {wanted}"

    def close(self) -> None:
        self._stack.close()

    def teardown(self) -> None:
        try:
            self.settle()
            self.holds()
            self.nothing_pends()
            for uuid in self.servers():
                self.note("delete", uuid)
                api.send(self.cloud, "delete", uuid)
            self.drain()
            self.settle()
            self.nothing_is_left()
        finally:
            self.close()

    def nothing_is_left(self) -> None:
        left: dict[str, Iterable[Any]] = {
            "servers": self.cloud.instances, "Placement's allocations": self.cloud.placement.allocations,
            "nova's PCI devices": self.cloud.pci}
        for host in self.hosts.values():
            left[f"containers of {host.name}"] = host.engine.specs
            left[f"allocation records of {host.name}"] = host.store.records()
        for what, found in left.items():
            assert not found, f"{what} are left: {list(found)}"


class NovaTest(frame.ModelTest):
    machine = Nova
    rounds = 12
    steps = 16
