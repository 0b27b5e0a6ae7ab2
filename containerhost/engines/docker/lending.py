"""A container's interfaces at its start and its end, for the OCI runtime: in, with their addresses, and back."""

import os
from pathlib import Path

from containerhost.engines.docker.record import Records
from containerhost.network import addresses, links
from containerhost.privileged import run


def load(folder: str, container: str) -> None:
    """What the others will need, while there is time for it."""
    if any(netdev.setup for netdev in Records(Path(folder)).read(container).netdevs):
        links.load()


def lend(folder: str, container: str, pid: int) -> None:
    """Move the interfaces in, and keep the network namespace: the kernel would keep it only as long as its processes,
    and with it every interface that comes later.

    :param folder: of the records
    :param pid: of the container's first process
    """
    records = Records(Path(folder))
    place = records.namespace(container)
    place.touch()
    run(["mount", "--bind", f"/proc/{pid}/ns/net", str(place)])
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
        run(["umount", str(place)])
    place.unlink()
