# SPDX-License-Identifier: Apache-2.0
"""Compare what a container's first process sees with its grants, and describe the differences."""

import fnmatch
from collections.abc import Iterable, Iterator, Sequence

from containerhost import vendors
from containerhost.devices.grants import Grant
from containerhost.devices.model import CharNode
from containerhost.engines.network import rdma_netns
from containerhost.errors import EngineConflict, HostActionFailed, NotAsGranted
from containerhost.linux.sysfs import Host
from containerhost.privileged import Inside, Privileged


class InterfaceMissing(HostActionFailed):
    """Signal that an interface is neither in its container nor on the host."""


def require_as_granted(name: str, pid: int | None, grants: Sequence[Grant], privileged: Privileged, host: Host) -> None:
    """Move the RDMA devices of ``grants`` into a running container, and require that it sees exactly its grants.

    :param pid: its first process; 0 or None if it is not running
    """
    if not pid:
        raise EngineConflict(f"container {name} does not run, so what it sees cannot be checked")
    rdma_netns.enter(privileged, host, pid, grants)
    found = complaints(privileged.inside(pid), grants)
    if found:
        raise NotAsGranted(f"container {name}: {'; '.join(found)}")


def complaints(seen: Inside, grants: Sequence[Grant]) -> tuple[str, ...]:
    return (*missing(seen, grants), *excess(seen, grants))


def require_interface(name: str, host_name: str, seen: Inside, host: Host) -> None:
    """Refuse to detach an interface that the guest has renamed or moved: an engine finds it by its name.

    :param host_name: of the interface on the host, to which an interrupted detachment has returned it
    :raises InterfaceMissing:
    """
    if name not in seen.netdevs and not host.is_directory(f"/sys/class/net/{host_name}"):
        raise InterfaceMissing(f"the container has no interface {name}: its guest renamed it, or moved it into another "
                               f"network namespace. In the guest call it {name} again, or stop the container, then try "
                               "again")


def missing(seen: Inside, grants: Iterable[Grant]) -> Iterator[str]:
    for grant in grants:
        for node in required(grant):
            found = seen.nodes.get(node.path)
            if found is None:
                yield f"{grant.device.id}: {node.path} is missing"
            elif tuple(found) != (node.major, node.minor):
                yield (f"{grant.device.id}: {node.path} is device {found[0]}:{found[1]}, "
                       f"not {node.major}:{node.minor}")
        for netdev in grant.netdevs:
            if netdev.name not in seen.netdevs:
                yield f"{grant.device.id}: interface {netdev.name} is missing"
        for name, wanted in grant.limits.items():
            have = seen.limits.get(name, "0")
            if limit_order(have) < limit_order(wanted):
                yield f"{grant.device.id}: its limit of {name} is {have}, not {wanted}"


def required(grant: Grant) -> tuple[CharNode, ...]:
    """Return the nodes that must be present; of shared ones, a toolkit brings only those its libraries use."""
    by_toolkit = grant.gpu is not None and bool(grant.gpu.libraries)
    return grant.own_nodes if by_toolkit else grant.nodes


def excess(seen: Inside, grants: Iterable[Grant]) -> Iterator[str]:
    granted = {(node.major, node.minor) for grant in grants for node in grant.nodes}
    patterns = [f"/dev/{pattern}" for pattern in vendors.node_patterns()]
    for path, number in sorted(seen.nodes.items()):
        if tuple(number) not in granted and any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns):
            yield f"it sees {path} ({number[0]}:{number[1]}), which was not granted"


def limit_order(limit: str) -> float:
    return float("inf") if limit == "unlimited" else int(limit)
