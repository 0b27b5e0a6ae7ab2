# SPDX-License-Identifier: Apache-2.0
"""Read the data of one scrape: one scan of the host, one reading of the records, no engine."""

import dataclasses
import logging
from collections.abc import Callable, Mapping

from containerhost import vendors
from containerhost.allocation.store import Allocation, AllocationStore
from containerhost.allocation.timings import Timing, Timings
from containerhost.devices import rdmacounters
from containerhost.devices.rdmacounters import PortCounters
from containerhost.errors import AllocationsUnreadable
from containerhost.inventory.scan import Inventory, scan
from containerhost.linux.sysfs import Host
from containerhost.vendors.base import Use

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Sample:
    """Hold the data that the exporter reports in one scrape.

    :ivar records: allocations by device id; None if they cannot be read
    """

    inventory: Inventory
    records: Mapping[str, Allocation] | None
    uses: Mapping[str, Use]
    ports: tuple[PortCounters, ...]
    timings: tuple[Timing, ...]


def read(host: Host, store: AllocationStore, usage: Callable[[], Mapping[str, Use]] = vendors.usage) -> Sample:
    """Return a current sample."""
    inventory = scan(host)
    records: Mapping[str, Allocation] | None
    try:
        records = store.records()
    except AllocationsUnreadable as error:
        LOG.error("Allocations are not exported: %s", error)
        records = None
    return Sample(inventory, records, usage(),
                  tuple(port for device in inventory.devices for port in rdmacounters.read(host, device)),
                  Timings(store.directory).read())
