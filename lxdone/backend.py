# SPDX-License-Identifier: Apache-2.0
"""Build the parts of the driver from the node's options, without contacting LXD.

Each part is imported where it is built: an action is a separate process, and unneeded imports would take most of a
short one's time.
"""

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from containerhost.engines.lxd.client import LxdClient, Settings
from containerhost.engines.lxd.engine import LxdEngine
from containerhost.privileged import Privileged
from lxdone.conf import DRIVER, Options

if TYPE_CHECKING:
    from containerhost.engines.lxd.exports import Exports
    from lxdone.disk.images import Images
    from lxdone.root.reconciler import Reconciler
    from lxdone.root.root_writeback import RootWriteback
    from lxdone.vmm import Vmm
    from onedriver.node.consoles import Consoles
    from onedriver.node.measure import Measure


def engine(options: Options) -> LxdEngine:
    settings = Settings(endpoint=options.endpoint or None, project=options.project or None,
                        request_timeout=options.request_timeout, operation_timeout=options.operation_timeout)
    return LxdEngine(LxdClient(settings), Privileged(), locks=Path(options.owners))


def vmm(options: Options) -> "Vmm":
    from containerhost.engines.lxd import niclimits
    from containerhost.engines.lxd.idmap import idmap
    from containerhost.engines.lxd.images import Images as ImageStore
    from containerhost.engines.lxd.migration import Transfers
    from containerhost.engines.lxd.snapshots import Snapshots
    from containerhost.linux.sysfs import Host
    from lxdone.livemigration import Destination
    from lxdone.root.root_images import RootImages
    from lxdone.vmm import Vmm
    from onedriver.node import allocations
    from onedriver.node.commands import Commands
    from onedriver.node.context import Contexts
    from onedriver.node.livemigration import connector

    lxd, host = engine(options), Host()
    allocator = allocations.allocator(DRIVER, options, lxd, Privileged())
    state, disks = Path(options.state), disks_of(options, lxd)
    root_images = RootImages(ImageStore(lxd.client), state, options.operation_timeout)
    return Vmm(options, lxd, allocator, Snapshots(lxd.client), root_images, writeback_of(options, lxd), disks,
               Contexts(state), Commands(state, DRIVER), consoles_of(options, lxd), host,
               functools.partial(idmap, lxd.client), functools.partial(niclimits.limit, lxd),
               Transfers(lxd.client, lxd.make), connector(DRIVER, Destination, Path(options.datastores),
                                                          options.migration_timeout))


def disks_of(options: Options, lxd: LxdEngine) -> "Images":
    from containerhost.engines.lxd.idmap import idmap
    from lxdone.disk.images import Images

    return Images(Path(options.state), Path(options.datastores), lambda name: idmap(lxd.client, name),
                  options.operation_timeout, options.block_devices)


def writeback_of(options: Options, lxd: LxdEngine) -> "RootWriteback":
    from lxdone.root.root_writeback import RootWriteback

    limit = options.operation_timeout

    def exports(compression: str) -> "Exports":
        from containerhost.engines.lxd.exports import Exports

        return Exports(lxd.client, compression, limit)

    return RootWriteback(exports, Path(options.datastores), limit)


def consoles_of(options: Options, lxd: LxdEngine) -> "Consoles":
    from onedriver.node.consoles import Consoles

    return Consoles(Path(options.state), "lxdone.console_client", lambda name: lxd.metrics(name).pid)


def reconciler(options: Options) -> "Reconciler":
    from lxdone.root.reconciler import Reconciler
    from onedriver.node import allocations
    from onedriver.node.context import Contexts

    lxd, state = engine(options), Path(options.state)
    devices = allocations.recovery(DRIVER, options, lxd, Privileged(), lambda vm_id: vmm(options).has_container(vm_id))
    return Reconciler(lxd, writeback_of(options, lxd), disks_of(options, lxd), Contexts(state),
                      consoles_of(options, lxd), devices, state, lambda vm_id: vmm(options).forget(vm_id))


def measure(options: Options) -> "Measure":
    from containerhost.linux.sysfs import Host
    from onedriver.node.measure import Measure

    return Measure(DRIVER, engine(options), reconciler(options).monitored, Path(options.owners), Path(options.state),
                   options.pci, Host(), Path(options.datastores))
