# SPDX-License-Identifier: Apache-2.0
"""Move RDMA devices on a host that keeps each of them in one network namespace (``rdma system set netns exclusive``).

A container's verbs see its function's RDMA device only if the device is in the container's namespace, so it is moved
there once the container runs. It returns to the host when the namespace is removed, and when the function is
restarted to clean it.
"""

from collections.abc import Iterable

from containerhost.devices import pci, rdmaports
from containerhost.devices.grants import Grant
from containerhost.devices.rdmaports import NamespaceMode
from containerhost.linux.sysfs import Host
from containerhost.privileged import Privileged


def enter(privileged: Privileged, host: Host, pid: int, grants: Iterable[Grant]) -> None:
    """Move the RDMA devices of ``grants`` into a running container. Idempotent.

    :param pid: its first process
    :raises HostActionFailed: a driver cannot move its device
    """
    if rdmaports.namespace_mode(host) is not NamespaceMode.EXCLUSIVE:
        return
    for grant in grants:
        rdma = grant.device.rdma
        if rdma and rdma.ibdev in host.names(f"{pci.directory(host, grant.device.address)}/infiniband"):
            privileged.move_rdma(rdma.ibdev, pid)
