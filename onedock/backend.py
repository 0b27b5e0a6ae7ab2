# SPDX-License-Identifier: Apache-2.0
"""Build the parts of the driver from the node's options.

Each part is imported where it is built: an action is a separate process, and unneeded imports would take most of a
short one's time.
"""

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from containerhost.engines.docker.client import DockerClient, Settings
from containerhost.engines.docker.engine import DockerEngine
from containerhost.engines.docker.privileged import DockerPrivileged
from onedock.conf import DRIVER, Options

if TYPE_CHECKING:
    from onedock.vmm import Vmm
    from onedriver.node.device_recovery import DeviceRecovery
    from onedriver.node.measure import Measure


def engine(options: Options) -> DockerEngine:
    settings = Settings(options.endpoint, options.request_timeout, options.operation_timeout)
    return DockerEngine(DockerClient(settings), DockerPrivileged(), Path(options.records))


def vmm(options: Options) -> "Vmm":
    from containerhost.engines.docker.images import Images
    from containerhost.engines.network.veth import Veths
    from containerhost.linux.sysfs import Host
    from onedock.guest import Guests
    from onedock.migrations import Destination
    from onedock.nics import Nics
    from onedock.root_images import RootImages, Snapshots
    from onedock.vmm import Vmm
    from onedriver.node import allocations
    from onedriver.node.commands import Commands
    from onedriver.node.livemigration import connector

    docker, host, privileged = engine(options), Host(), DockerPrivileged()
    allocator = allocations.allocator(DRIVER, options, docker, privileged)
    state, datastores = Path(options.state), Path(options.datastores)
    images = Images(docker.client)
    root_images = RootImages(images, datastores, state, options.operation_timeout)
    return Vmm(options, docker, allocator, root_images, Snapshots(images), Commands(state, DRIVER),
               Guests(state, datastores, functools.cache(docker.root_ids)), Nics(Veths(privileged, host)), host,
               connector(DRIVER, Destination, datastores, options.migration_timeout))


def reconcile(options: Options) -> None:
    """Finish or undo what killed actions left: live migrations, and changes of devices."""
    vmm(options).recover_migrations()
    recover_devices(options)


def recover_devices(options: Options) -> None:
    """Finish or undo interrupted changes of devices by killed actions."""
    docker = engine(options)
    devices_of(options, docker).recover(docker.containers())


def devices_of(options: Options, docker: DockerEngine) -> "DeviceRecovery":
    from onedriver.node import allocations

    return allocations.recovery(DRIVER, options, docker, DockerPrivileged(),
                                lambda vm_id: vmm(options).has_container(vm_id))


def measure(options: Options) -> "Measure":
    from containerhost.linux.sysfs import Host
    from onedock.rootowner import interrupted
    from onedriver.node.measure import Measure
    from onedriver.node.monitored import containers

    docker = engine(options)
    devices = devices_of(options, docker)
    seen = functools.partial(containers, DRIVER, docker,
                             lambda found: devices.pending(found) or interrupted(Path(options.state)))
    return Measure(DRIVER, docker, seen, Path(options.owners), Path(options.state), options.pci, Host(),
                   Path(options.datastores))
