# SPDX-License-Identifier: Apache-2.0
"""Find containers of servers that nova does not place on this host, and log them without changes.

They are removed by nova if its records show that the server was deleted, evacuated or is being moved; otherwise by
the operator, who knows whether nova's database was restored or purged.
"""

from collections.abc import Iterable

from nova import objects
from oslo_log import log as logging

from containerhost.engines.contract import ContainerState
from nova_lxd_ext.instance import labels

LOG = logging.getLogger(__name__)


def report(containers: Iterable[ContainerState], instances: Iterable[objects.Instance]) -> tuple[str, ...]:
    """Log each orphan."""
    placed = {instance.uuid for instance in instances}
    found = {state.name: uuid for state in containers if (uuid := labels.uuid(state.labels)) and uuid not in placed}
    for name, uuid in found.items():
        LOG.warning("Container %s is of server %s, which nova does not place on this host. If the server was deleted, "
                    "evacuated or is being moved, nova removes the container; if nova does not know the server, remove "
                    "it yourself, then restart nova-compute to free its devices: lxc delete --force %s",
                    name, uuid, name)
    return tuple(found)
