# SPDX-License-Identifier: Apache-2.0
"""Hold what all checks look at."""

import dataclasses
from pathlib import Path

from containerhost.inventory.scan import Inventory
from containerhost.inventory.topology import Topology
from containerhost.linux.sysfs import Host


@dataclasses.dataclass(frozen=True)
class Seen:
    """Hold what the checks of `containerhost doctor` read of the host.

    :ivar owners: directory of the allocation records
    """

    host: Host
    inventory: Inventory
    topology: Topology
    owners: Path
