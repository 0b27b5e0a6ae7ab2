# SPDX-License-Identifier: Apache-2.0
"""Pass a plain process's devices in its environment: it sees all of the host's /dev. Pure.

The other translators share the functions below.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from containerhost import vendors
from containerhost.devices.grants import Grant
from containerhost.engines.affinity import Binding
from containerhost.errors import SpecError

DEVICES, INTERFACES, RDMA = "CONTAINERHOST_DEVICES", "CONTAINERHOST_NETDEVS", "CONTAINERHOST_RDMA"


def translate(command: Sequence[str], grants: Sequence[Grant], group: str, binding: Binding
              ) -> tuple[list[str], Mapping[str, str]]:
    """Return the unchanged command, and its variables."""
    return list(command), environment(grants)


def environment(grants: Iterable[Grant]) -> dict[str, str]:
    """Return variables with the devices' ids, interfaces and RDMA devices, and those that vendors' programs read."""
    devices = [grant.device for grant in grants]
    found = {DEVICES: ",".join(device.id for device in devices)}
    if interfaces := [name for device in devices for name in device.netdevs]:
        found[INTERFACES] = ",".join(interfaces)
    if rdma := [device.rdma.ibdev for device in devices if device.rdma]:
        found[RDMA] = ",".join(rdma)
    for vendor in {device.plugin: vendors.of(device) for device in devices}.values():
        found.update(vendor.environment(devices))
    return found


def nodes(grants: Iterable[Grant]) -> tuple[str, ...]:
    """Return the paths of all nodes, each once."""
    return tuple(dict.fromkeys(node.path for grant in grants for node in grant.nodes))


def position(command: Sequence[str], words: Collection[str] = ("run",)) -> int:
    """Return the index of a container tool's subcommand that starts a container: its options follow.

    :raises SpecError: the command has no such subcommand
    """
    for index, word in enumerate(command):
        if index and word in words:
            return index
    raise SpecError(f"{' '.join(command[:3])}: only {', '.join(words)} can be given devices")
