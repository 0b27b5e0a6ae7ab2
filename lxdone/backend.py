"""Puts the parts of the driver together from the node's options. Nothing here talks to LXD yet."""

from pathlib import Path

from containerhost import topology
from containerhost.devices.scan import Inventory, scan
from containerhost.engines.lxd.client import LxdClient, Settings
from containerhost.engines.lxd.engine import LxdEngine
from containerhost.engines.lxd.pooldisks import PoolDisks
from containerhost.owners import Owners
from containerhost.possession import Possession
from containerhost.privileged import Privileged
from containerhost.sysfs import Host
from lxdone.conf import Options
from lxdone.disks import Disks
from lxdone.roots import Roots
from lxdone.vmm import DRIVER, Vmm
from onedriver.node.context import Contexts
from onedriver.node.measure import Measure


def engine(options: Options) -> LxdEngine:
    settings = Settings(endpoint=options.endpoint or None, project=options.project or None,
                        request_timeout=options.request_timeout, operation_timeout=options.operation_timeout)
    return LxdEngine(LxdClient(settings), Privileged(), locks=Path(options.owners))


def vmm(options: Options) -> Vmm:
    lxd, host = engine(options), Host()

    def inventory() -> Inventory:
        return scan(host)

    possession = Possession(Owners(Path(options.owners)), inventory, Privileged(), lxd.held)
    state = Path(options.state)
    roots = Roots(lxd.client, state, Path(options.datastores), options.operation_timeout)
    disks = Disks(PoolDisks(lxd.client, options.storage_pool))
    return Vmm(options, lxd, possession, roots, disks, Contexts(state), inventory,
               lambda: {node.id: node.cpus for node in topology.read(host).nodes})


def measure(options: Options) -> Measure:
    return Measure(DRIVER, engine(options), Path(options.owners), Path(options.state), options.pci_filter, Host())
