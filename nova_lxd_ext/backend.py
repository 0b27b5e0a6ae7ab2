# SPDX-License-Identifier: Apache-2.0
"""Build the parts of the driver from the operator's options, without contacting the engine."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

from nova import context as nova_context
from nova import objects
from nova.image import glance
from nova.virt import hardware
from oslo_config import cfg

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.sharedmemory import SharedMemories
from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.devices.health import kernellog
from containerhost.engines.corebinding import CoreBinding
from containerhost.engines.lxd.client import LxdClient, Settings
from containerhost.engines.lxd.disktransfers import DiskTransfers
from containerhost.engines.lxd.engine import LxdEngine
from containerhost.engines.lxd.exports import Exports
from containerhost.engines.lxd.idmap import idmap
from containerhost.engines.lxd.images import Images
from containerhost.engines.lxd.live import Live
from containerhost.engines.lxd.migration import Transfers
from containerhost.engines.lxd.pooldisks import PoolDisks
from containerhost.engines.network.veth import Veths
from containerhost.guest.guestfiles import GuestFiles
from containerhost.guest.guestnotice import GuestNotice
from containerhost.inventory import topology
from containerhost.inventory.scan import HostView, Inventory
from containerhost.linux.sysfs import Host
from containerhost.privileged import Privileged
from containerhost.vendors.kernellog import read as read_log
from nova_lxd_ext import compat
from nova_lxd_ext.access.consoles import Consoles
from nova_lxd_ext.hardware import notifications
from nova_lxd_ext.hardware.allocations import HostSlices, Placement
from nova_lxd_ext.hardware.devicefaults import DeviceFaults
from nova_lxd_ext.hardware.deviceproviders import DeviceProviders
from nova_lxd_ext.hardware.flavor_devices import DRIVER, ENGINE, FlavorDevices
from nova_lxd_ext.host.resources import Resources
from nova_lxd_ext.image.imagecache import ImageCache
from nova_lxd_ext.image.images import Cache
from nova_lxd_ext.image.snapshots import Snapshots
from nova_lxd_ext.instance import labels
from nova_lxd_ext.instance.flavor import HostCpus
from nova_lxd_ext.instance.states import States
from nova_lxd_ext.network.vifdirect import DirectPorts
from nova_lxd_ext.network.vifevents import VifEvents
from nova_lxd_ext.network.vifplug import Plugs
from nova_lxd_ext.network.vifs import Ports
from nova_lxd_ext.peers import Peers
from nova_lxd_ext.privsep import privileged
from nova_lxd_ext.server.attachments import DeviceAttachments
from nova_lxd_ext.server.deferred import Deferred
from nova_lxd_ext.server.incoming import IncomingMigrations
from nova_lxd_ext.server.jobmemory import JobMemories
from nova_lxd_ext.server.lifecycle import Lifecycle
from nova_lxd_ext.server.livemigration import LiveMigrations
from nova_lxd_ext.server.liverecovery import LiveRecovery
from nova_lxd_ext.server.liveresize import LiveResize
from nova_lxd_ext.server.migration import Migrations
from nova_lxd_ext.server.power import Power
from nova_lxd_ext.server.recovery import Recovery
from nova_lxd_ext.server.rescue import Rescue
from nova_lxd_ext.storage.connectors import Connectors
from nova_lxd_ext.storage.ephemerals import Ephemerals
from nova_lxd_ext.storage.volumecopy import Copier
from nova_lxd_ext.storage.volumes import Volumes

DOWNLOADS = "_base"  # directory for fetched images of nova's other drivers, below instances_path


@dataclasses.dataclass(frozen=True)
class Backend:
    """Hold the driver's parts, which :func:`build` creates for one engine and host."""

    host: Host
    engine: LxdEngine
    images: Cache
    imagecache: ImageCache
    snapshots: Snapshots
    resources: Resources
    flavor_devices: FlavorDevices
    states: States
    lifecycle: Lifecycle
    power: Power
    rescue: Rescue
    recovery: Recovery
    deferred: Deferred
    ports: Ports
    connectors: Connectors
    volumes: Volumes
    device_providers: DeviceProviders
    consoles: Consoles
    peers: Peers
    incoming: IncomingMigrations
    moves: Migrations
    live_moves: LiveMigrations
    live_recovery: LiveRecovery


def build(conf: cfg.ConfigOpts, host: Host | None = None, virtapi: Any = None) -> Backend:
    """Build the driver's parts.

    :param virtapi: nova's interface that receives neutron's events; None if there are none to wait for
    :param host: the machine whose devices and cores are allocated; None for this one
    """
    host = host or Host()
    client = LxdClient(settings(conf))
    root_actions = privileged()
    host.stacked = lambda: dict(root_actions.stacked())
    engine = LxdEngine(client, root_actions, locks=Path(conf.lxd.owners_dir), restart_limit=conf.lxd.ready_timeout)
    store = AllocationStore(Path(conf.lxd.owners_dir))

    def view() -> HostView:
        return HostView(host, functools.partial(kernel_log, root_actions))

    def inventory() -> Inventory:
        return view().inventory

    memories = SharedMemories(Path(conf.lxd.owners_dir), DRIVER, ENGINE, root_actions)

    def mates(name: str) -> frozenset[int]:
        uuid = labels.uuid(engine.container(name).labels) or ""
        return memories.first_processes(engine.pid, Consumer(DRIVER, ENGINE, name, uuid))

    engine.mates = mates
    allocator = DeviceAllocator(store, view, root_actions, engine.held,
                                holders=functools.partial(memories.first_processes, engine.pid))
    image_api = glance.API()
    images = Cache(Images(client), image_api, Path(conf.instances_path) / DOWNLOADS,
                   lambda: engine.server().architectures)
    states = States(engine)
    placement = Placement()
    slices = HostSlices(conf.host, store, placement)
    node_id = functools.cache(functools.partial(compute_node_id, conf.host))
    flavor_devices = FlavorDevices(conf, allocator, slices, node_id)
    veths = Veths(root_actions, host)
    ports = Ports(engine, veths, Plugs(veths), DirectPorts(conf, allocator, node_id),
                  VifEvents(conf, virtapi))
    connectors = Connectors(conf)
    volumes = Volumes(engine, states, connectors, Copier(root_actions, conf.lxd.volume_timeout))
    pool = conf.lxd.storage_pool
    ephemerals = Ephemerals(PoolDisks(client, pool), DiskTransfers(client, pool))
    job_memories = JobMemories(memories, functools.partial(idmap, client))
    attachments = DeviceAttachments(engine, (flavor_devices, ports, volumes, ephemerals, job_memories), view,
                                    Path(conf.lxd.owners_dir))
    cores = CoreBinding(engine, host, Path(conf.lxd.owners_dir), labels.UUID)
    lifecycle = Lifecycle(conf, engine, states, attachments, images, cores, lambda: host_cpus(host))
    power = Power(conf, engine, states, attachments)
    notice = GuestNotice(GuestFiles(engine.pid, root_actions), conf.lxd.shrink_notice)
    changes = Live(engine, root_actions, host)
    live = LiveResize(conf, engine, changes, notice, states, attachments, flavor_devices, lifecycle)
    transfers, peers = Transfers(client, engine.make), Peers(conf)
    incoming = IncomingMigrations(conf, engine, transfers, states, attachments, lifecycle, ephemerals, virtapi)
    moves = Migrations(conf, engine, states, attachments, lifecycle, power, live, notice, transfers, ephemerals, peers,
                       conf.lxd.migration_address)
    live_moves = LiveMigrations(conf, states, ports, live, moves, incoming, virtapi)
    deferred = Deferred()
    return Backend(
        host=host, engine=engine, images=images, states=states, ports=ports, connectors=connectors, volumes=volumes,
        imagecache=ImageCache(conf, images, image_api),
        snapshots=Snapshots(states, exports(conf, client, engine), image_api,
                            functools.partial(engine.apparent_size, timeout=conf.lxd.snapshot_timeout)),
        device_providers=DeviceProviders(store, placement, inventory),
        resources=Resources(engine, host, inventory, store, pool, DeviceFaults(notice.tell_faults, notifications.emit)),
        flavor_devices=flavor_devices,
        lifecycle=lifecycle, power=power, peers=peers,
        rescue=Rescue(conf, engine, states, lifecycle, power, attachments, images),
        recovery=Recovery(states, lifecycle, power, changes.await_changes, deferred), deferred=deferred,
        consoles=Consoles(conf, engine, states),
        incoming=incoming, moves=moves, live_moves=live_moves,
        live_recovery=LiveRecovery(lambda: compat.manager(virtapi), states, live_moves, deferred))


def compute_node_id(host: str) -> int:
    """Return the id of a host's compute node record in nova's database; each host is one node.

    :raises ComputeHostNotFound: nova-compute has not yet created the record
    """
    return int(objects.ComputeNode.get_by_host_and_nodename(nova_context.get_admin_context(), host, host).id)


def kernel_log(root_actions: Privileged, host: Host) -> kernellog.Log:
    """Return the kernel's messages about devices, read by the helper if this process may not."""
    log = read_log(host)
    return log if log.readable or not host.live else kernellog.restored(root_actions.kernel_log())


def settings(conf: cfg.ConfigOpts) -> Settings:
    options = conf.lxd
    return Settings(endpoint=options.endpoint, cert=options.client_cert, key=options.client_key,
                    server_cert=options.ca_file, project=options.project, request_timeout=options.request_timeout,
                    operation_timeout=options.operation_timeout)


def exports(conf: cfg.ConfigOpts, client: LxdClient, engine: LxdEngine) -> Exports:
    return Exports(client, conf.lxd.snapshot_compression, conf.lxd.snapshot_timeout, engine.end_copies)


def host_cpus(host: Host) -> HostCpus:
    """Return the cores of ``host`` by node, and which of them nova's options share."""
    shared, dedicated, found = hardware.get_cpu_shared_set(), hardware.get_cpu_dedicated_set(), topology.read(host)
    return HostCpus(cells={node.id: node.cpus for node in found.nodes},
                    shared=None if shared is None else frozenset(shared), dedicated=frozenset(dedicated or ()),
                    memory={node.id: min(found.memory_of([node.id])) for node in found.nodes})
