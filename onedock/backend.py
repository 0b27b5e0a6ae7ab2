# SPDX-License-Identifier: Apache-2.0
"""Build the parts of the driver from the node's options."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.store import AllocationStore
from containerhost.devices.scan import HostView
from containerhost.engines.docker.client import DockerClient, Settings
from containerhost.engines.docker.engine import DockerEngine
from containerhost.engines.docker.images import Images
from containerhost.engines.docker.privileged import DockerPrivileged
from containerhost.network.veth import Veths
from containerhost.sysfs import Host
from onedock.conf import Options
from onedock.guest import Guests
from onedock.monitored import MonitoredEngine
from onedock.nics import Nics
from onedock.root_images import RootImages, Snapshots
from onedock.vmm import Vmm
from onedriver.node.commands import Commands
from onedriver.node.device_recovery import DeviceRecovery

if TYPE_CHECKING:
    from onedriver.node.measure import Measure

def engine(options: Options) -> DockerEngine:
    settings = Settings(options.endpoint, options.request_timeout, options.operation_timeout)
    return DockerEngine(DockerClient(settings), DockerPrivileged(), Path(options.records))


def vmm(options: Options) -> Vmm:
    docker, host, privileged = engine(options), Host(), DockerPrivileged()
    allocator = allocator_of(options, docker)
    state, datastores = Path(options.state), Path(options.datastores)
    images = Images(docker.client)
    root_images = RootImages(images, datastores, state, options.operation_timeout)
    return Vmm(options, docker, allocator, root_images, Snapshots(images), Commands(state, Vmm.driver),
               Guests(state, datastores, functools.cache(docker.root_ids)), Nics(Veths(privileged, host)), host)


def allocator_of(options: Options, docker: DockerEngine) -> DeviceAllocator:
    return DeviceAllocator(AllocationStore(Path(options.owners)), HostView, DockerPrivileged(), docker.held)


def recover_devices(options: Options) -> None:
    """Finish or undo what killed actions began with devices."""
    docker = engine(options)
    devices_of(options, docker).recover(docker.containers())


def devices_of(options: Options, docker: DockerEngine) -> DeviceRecovery:
    return DeviceRecovery(Vmm.driver, docker.name, lambda vm_id: vmm(options).has_container(vm_id),
                          allocator_of(options, docker), Path(options.state))


def measure(options: Options) -> "Measure":
    from onedriver.node.measure import Measure  # noqa: PLC0415  (an action of a VM does without)

    docker = engine(options)
    seen = MonitoredEngine(docker, devices_of(options, docker))
    return Measure(Vmm.driver, seen, Path(options.owners), Path(options.state), options.pci_filter, Host(),
                   Path(options.datastores))
