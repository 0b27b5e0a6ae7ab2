"""A container's interfaces at its start and its end, for the OCI runtime: in, with their addresses, and back."""

import os
from pathlib import Path

from containerhost.engines.docker.record import Records
from containerhost.network import addresses, links
from containerhost.storage import mountapi


def lend(folder: str, container: str, pid: int) -> None:
    """Move the interfaces in, and keep the network namespace: the kernel would keep it only as long as its processes,
    and with it every interface that comes later.

    :param folder: of the records
    :param pid: of the container's first process
    """
    records = Records(Path(folder))
    place = records.namespace(container)
    place.touch()
    namespace = mountapi.shown_again(f"/proc/{pid}/ns/net")
    try:
        mountapi.place(namespace, str(place))
    finally:
        os.close(namespace)
    for netdev in sorted(records.read(container).netdevs):
        links.lend(netdev.host_name, str(place), netdev.name)
        if netdev.setup:
            addresses.apply(str(place), netdev.name, netdev.setup)


def bring_back(folder: str, container: str) -> None:
    """Done already when nothing of it is kept."""
    records = Records(Path(folder))
    place = records.namespace(container)
    if not place.exists():
        return
    if os.path.ismount(place):
        for netdev in sorted(records.read(container).netdevs):
            if netdev.name in links.names_in(str(place)):
                links.fetch(netdev.name, str(place), netdev.host_name)
        mountapi.unmount(str(place))
    place.unlink()
