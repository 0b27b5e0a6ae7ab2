# SPDX-License-Identifier: Apache-2.0
"""Move a container's interfaces and addresses into its namespace at its start, and back. For the OCI runtime."""

import os

from containerhost.engines.docker import recordfiles
from containerhost.linux import mountapi
from containerhost.linux.files import closing
from containerhost.linux.network import addresses, links


def move_in(directory: str, container: str, pid: int) -> None:
    """Move the interfaces in, and keep the network namespace alive.

    Otherwise the kernel would remove it with its processes, together with interfaces attached later."""
    place = recordfiles.namespace(directory, container)
    os.close(os.open(place, os.O_CREAT | os.O_CLOEXEC, 0o600))
    with closing(mountapi.shown_again(f"/proc/{pid}/ns/net")) as namespace:
        mountapi.place(namespace, place)
    for host_name, name, setup in recordfiles.netdevs(directory, container):
        links.move_in(host_name, place, name)
        if setup:
            addresses.apply(place, name, setup)


def bring_back(directory: str, container: str) -> None:
    """Move the interfaces back to the host. Idempotent."""
    place = recordfiles.namespace(directory, container)
    if not os.path.exists(place):
        return
    if os.path.ismount(place):
        for host_name, name, _ in recordfiles.netdevs(directory, container):
            if name in links.names_in(place):
                links.fetch(name, place, host_name)
        mountapi.unmount(place)
    os.unlink(place)
