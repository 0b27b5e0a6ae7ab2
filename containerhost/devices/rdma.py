"""The RDMA side of a PCI function: its InfiniBand device, GUIDs, port and character nodes.

Sources: Documentation/ABI/stable/sysfs-class-infiniband and Documentation/infiniband/user_{verbs,mad}.rst.
"""

import re

from containerhost.devices.model import CharNode, LinkLayer, NodeUse, Rdma
from containerhost.devices.pci import FOLDER
from containerhost.sysfs import Host

_GUID = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4}){3}")
_GID = re.compile(r"(?:[0-9a-f]{4}:){4}([0-9a-f]{4}(?::[0-9a-f]{4}){3})")
_VERBS = re.compile(r"uverbs[0-9]{1,4}")
_MAD = re.compile(r"(?:umad|issm)[0-9]{1,4}")
_NO_GUID = "0000:0000:0000:0000"


def read(host: Host, address: str) -> tuple[Rdma | None, LinkLayer | None]:
    """The function's first RDMA device and the link layer of its first port; None where there is none."""
    folder = f"{FOLDER}/{address}/infiniband"
    ibdevs = host.names(folder)
    if not ibdevs:
        return None, None
    ibdev = f"{folder}/{ibdevs[0]}"
    port = f"{ibdev}/ports/{next(iter(host.names(f'{ibdev}/ports')), '1')}"
    # The kernel writes "4: ACTIVE".
    state = (host.text(f"{port}/state") or "").rpartition(":")[2].strip().lower()
    layer = (host.text(f"{port}/link_layer") or "").lower()
    guid = (host.text(f"{ibdev}/node_guid") or "").lower()
    rdma = Rdma(
        ibdev=ibdevs[0],
        node_guid=guid if _GUID.fullmatch(guid) else None,
        port_guid=_port_guid(host, port),
        port_state=state or None,
    )
    return rdma, LinkLayer(layer) if layer in tuple(LinkLayer) else None


def _port_guid(host: Host, port: str) -> str | None:
    """The lower half of the port's first GID (InfiniBand Architecture Specification 4.1.1)."""
    match = _GID.fullmatch((host.text(f"{port}/gids/0") or "").lower())
    return match[1] if match and match[1] != _NO_GUID else None


def nodes(host: Host, address: str) -> tuple[CharNode, ...]:
    """uverbs of this function, rdma_cm that every RDMA user shares, and the management nodes this host has made."""
    folder = f"{FOLDER}/{address}"
    found = _nodes(host, f"{folder}/infiniband_verbs", _VERBS, NodeUse.OWN)
    if not found:
        return ()
    manager = host.misc_number("rdma_cm")
    if manager:
        found.append(CharNode("/dev/infiniband/rdma_cm", *manager, NodeUse.SHARED))
    # No tenant's verbs need these, so one that was never made is no fault: it is only not there to give.
    found += [node for node in _nodes(host, f"{folder}/infiniband_mad", _MAD, NodeUse.MANAGEMENT)
              if host.exists(node.path)]
    return tuple(found)


def _nodes(host: Host, folder: str, pattern: re.Pattern[str], use: NodeUse) -> list[CharNode]:
    found = []
    for name in host.names(folder):
        number = host.char_number(f"{folder}/{name}/dev") if pattern.fullmatch(name) else None
        if number:
            found.append(CharNode(f"/dev/infiniband/{name}", *number, use))
    return found
