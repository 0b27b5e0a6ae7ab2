# SPDX-License-Identifier: Apache-2.0
"""Format devices and topology for a terminal."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from containerhost.allocation.store import Allocation
from containerhost.devices.model import CharNode, Device, NodeUse
from containerhost.devices.pci import ADDRESS, NOVA_DOMAINS, is_beyond_nova
from containerhost.devices.rdmaports import NamespaceMode
from containerhost.inventory.pci_topology import Connection, cards
from containerhost.inventory.scan import Inventory
from containerhost.inventory.topology import Topology
from containerhost.linux.idlist import id_text
from containerhost.operator.reports import allocations

_COLUMNS = ("device", "kind", "role", "link", "pci id", "class", "driver", "numa", "model", "uuid", "parent", "netdev",
            "guids (node port)", "port", "nodes", "health", "notes", "state", "owner", "since", "blocked", "remedy")
_SHORT = ("device", "kind", "model", "numa", "netdev", "health", "state", "owner")
_GIBIBYTE = 1 << 30


def devices(inventory: Inventory, records: Mapping[str, Allocation] | None, *, short: bool = False) -> str:
    """Return a table with one device a line; nodes that devices share are listed once, below it.

    :param records: None if they cannot be read: then no device is shown as free
    :param short: leave out nodes and rarely needed columns
    """
    rows = [_row(device, records) for device in inventory.devices]
    if short:
        places = [_COLUMNS.index(name) for name in _SHORT]
        return f"{table(_SHORT, [[row[place] for place in places] for row in rows])}\n{_summary(inventory)}"
    shown = table(_COLUMNS, rows)
    shared = {node for device in inventory.devices for node in device.nodes if node.use is NodeUse.SHARED}
    own = {node.path for device in inventory.devices for node in device.nodes if node.use is NodeUse.OWN}
    common = _nodes(sorted(node for node in shared if node.path not in own))
    return "\n".join([shown, *([f"shared nodes: {common}"] if common else []), _summary(inventory)])


def _summary(inventory: Inventory) -> str:
    unwell = sum(not device.healthy for device in inventory.devices)
    beyond = [device.id for device in inventory.devices if is_beyond_nova(device.address)]
    return "\n".join([f"{len(inventory.devices)} devices, {unwell} of them not healthy",
                      *([f"{NOVA_DOMAINS}: {' '.join(beyond)}"] if beyond else [])])


def _row(device: Device, records: Mapping[str, Allocation] | None) -> tuple[str, ...]:
    rdma = device.rdma
    numa = "" if device.numa_node is None else str(device.numa_node)
    guids = f"{rdma.node_guid or '-'} {rdma.port_guid or '-'}" if rdma else ""
    model = f"{device.model or ''} {device.slice.profile or ''}".strip() if device.slice else device.model or ""
    return (device.id, device.kind, device.role, device.link_layer or "", f"{device.vendor_id}:{device.product_id}",
            device.class_code, device.driver or "", numa, model, device.uuid or "", device.parent or "",
            " ".join(device.netdevs), guids, (rdma.port_state or "") if rdma else "",
            _nodes(node for node in device.nodes if node.use is not NodeUse.SHARED), _health(device),
            "; ".join(device.notes), *_allocation(device, records))


def _health(device: Device) -> str:
    if device.health:
        return "; ".join(device.health)
    return "ok; netdev in another namespace" if device.netdev_away else "ok"


def _allocation(device: Device, records: Mapping[str, Allocation] | None) -> tuple[str, ...]:
    row = allocations.row(device.id, records)
    record = (records or {}).get(device.id)
    host = f"the host: {'; '.join(device.host_use)}" if device.host_use else ""
    return ((row["state"] or "unknown").upper(), str(record.consumer) if record else host, row["since"] or "",
            row["blocked"] or "", row["remedy"] or "")


def _nodes(nodes: Iterable[CharNode]) -> str:
    return " ".join(f"{node.path.removeprefix('/dev/')}={node.major}:{node.minor}" for node in nodes)


def rdma(rows: Sequence[Mapping[str, Any]], mode: NamespaceMode | None, manager: bool) -> str:
    """Return a table with one port a line, and the properties of the whole host."""
    if not rows:
        return "no RDMA device"
    cells = [(row["device"], row["ibdev"], str(port["number"]), row["link_layer"] or "", port["state"] or "",
              port["rate"] or "", " ".join(port["pkeys"]),
              " ".join(f"{gid['index']}={gid['address']}{' (RoCE v2)' if gid['kind'] == 'RoCE v2' else ''}"
                       for gid in port["gids"]),
              row["netdev"] or "", " ".join(row["nodes"]), " ".join(row["nearest_gpus"]), row["owner"] or "")
             for row in rows for port in row["ports"] or [{"number": "", "state": "in another namespace", "rate": None,
                                                           "pkeys": (), "gids": ()}]]
    shown = table(("device", "ibdev", "port", "link", "state", "rate", "pkeys", "gids", "netdev", "nodes",
                   "nearest gpus", "owner"), cells)
    cm = "there" if manager else "missing: programs that connect by it (MPI, UCX) need module rdma_ucm"
    return f"{shown}\nnetwork namespaces: {mode or 'shared (this kernel knows no other way)'}\nrdma_cm: {cm}"


def pci_topology(inventory: Inventory, found: Iterable[Connection]) -> str:
    """Return a table of the connections between GPUs and network cards."""
    ways = {(connection.gpu, connection.function): connection.way for connection in found}
    columns = [device.id for device in cards(inventory)]
    gpus = sorted({gpu for gpu, _ in ways})
    if not gpus or not columns:
        return ""
    return table(("gpu", *columns), [(gpu, *(ways[gpu, function] for function in columns)) for gpu in gpus])


def topology(found: Topology, inventory: Inventory) -> str:
    """Return the processors in a line, then a table of NUMA nodes with the devices near each."""
    cpu = found.cpu
    head = (f"{cpu.model or 'unknown processor'} ({cpu.arch}): {cpu.sockets} sockets, {cpu.cores_per_socket} cores, "
            f"{cpu.threads_per_core} threads each")
    rows = []
    for node in found.nodes:
        pages = " ".join(f"{size >> 10}KiB:{free}/{total}" for size, (total, free) in node.hugepages.items())
        near = " ".join(device.id for device in inventory.devices if device.numa_node == node.id)
        rows.append((str(node.id), id_text(node.cpus), f"{node.memory / _GIBIBYTE:.1f}", f"{node.free / _GIBIBYTE:.1f}",
                     pages, " ".join(map(str, node.distances)), near))
    foreign = [f"node {node.id}: {node.memory / _GIBIBYTE:.1f} GiB of an accelerator, which is not the host's to give"
               for node in found.of_devices]
    return "\n".join([printable(head), table(
        ("node", "cpus", "GiB", "free GiB", "huge pages free/all", "distances", "devices"), rows), *foreign])


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return aligned columns under their names, in capitals but for addresses; empty columns are left out."""
    cells = [[printable(cell) for cell in row] for row in rows]
    shown = [index for index in range(len(columns)) if not rows or any(row[index] for row in cells)]
    names = [name if ADDRESS.fullmatch(name) else name.upper() for name in columns]
    lines = [[names[index] for index in shown], *([row[index] for index in shown] for row in cells)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
                     for line in lines)


def printable(text: str) -> str:
    """Replace control characters: text of a card or a captured tree must not control the terminal."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in text)
