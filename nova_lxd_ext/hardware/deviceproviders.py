# SPDX-License-Identifier: Apache-2.0
"""Report to Placement what nova does not: parts of GPUs, and functions that are currently unavailable."""

from collections.abc import Callable

import nova.conf
from nova.compute.provider_tree import ProviderTree
from oslo_log import log as logging

from containerhost.allocation.store import AllocationStore
from containerhost.errors import AllocationsUnreadable
from containerhost.inventory.scan import Inventory
from nova_lxd_ext.hardware import pci, reserved, sliceproviders, slices
from nova_lxd_ext.hardware.allocations import Placement

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)


class DeviceProviders:
    """Write this host's GPU slices and shares, and its reserved PCI functions, into nova's provider tree."""

    def __init__(self, store: AllocationStore, placement: Placement, inventory: Callable[[], Inventory]) -> None:
        self._store = store
        self._placement = placement
        self._inventory = inventory

    def update(self, tree: ProviderTree, nodename: str) -> None:
        """Write them into nova's view of Placement.

        Without reliable records no part of a GPU may be allocated, and reservations stay."""
        inventory = self._inventory()
        try:
            records = self._store.records()
        except AllocationsUnreadable as error:
            LOG.error("All slices of this host are reserved: %s", error)
            everything = [device.id for device in inventory.devices]
            sliceproviders.update(tree, nodename, inventory, everything, self._placement.used)
            return
        sliceproviders.update(tree, nodename, inventory, slices.unusable(inventory, records), self._placement.used)
        whole = pci.reserved(inventory, records) if CONF.pci.report_in_placement else ()
        reserved.update(tree, nodename, whole)
