# SPDX-License-Identifier: Apache-2.0
"""Hold the data that all checks use."""

import dataclasses
from pathlib import Path

from containerhost.inventory.scan import Inventory
from containerhost.inventory.topology import Topology
from containerhost.linux.sysfs import Host


@dataclasses.dataclass(frozen=True)
class HostData:
    """Hold the data of the host that `containerhost doctor` checks."""

    host: Host
    inventory: Inventory
    topology: Topology
    owners: Path
