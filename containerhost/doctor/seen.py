# SPDX-License-Identifier: Apache-2.0
"""Hold what all checks look at."""

import dataclasses
from pathlib import Path

from containerhost.devices.scan import Inventory
from containerhost.sysfs import Host
from containerhost.topology import Topology


@dataclasses.dataclass(frozen=True)
class Seen:
    """:ivar owners: directory of the allocation records
    """

    host: Host
    inventory: Inventory
    topology: Topology
    owners: Path
