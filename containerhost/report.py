"""How devices and topology look on a terminal. JSON is for programs; this is for people."""

from collections.abc import Iterable, Mapping, Sequence

from containerhost.devices.model import CharNode, Device, NodeUse
from containerhost.devices.scan import Inventory
from containerhost.idlist import id_runs
from containerhost.owners import Record
from containerhost.topology import Topology

_COLUMNS = ("device", "kind", "role", "link", "pci id", "class", "driver", "numa", "model", "uuid", "parent", "netdev",
            "guids (node port)", "port", "nodes", "health", "owner")
_GIBIBYTE = 1 << 30


def devices(inventory: Inventory, records: Mapping[str, Record]) -> str:
    """A table with one device a line; nodes that devices share are listed once, below it."""
    shown = table(_COLUMNS, [_row(device, records.get(device.id)) for device in inventory.devices])
    shared = {node for device in inventory.devices for node in device.nodes if node.use is NodeUse.SHARED}
    own = {node.path for device in inventory.devices for node in device.nodes if node.use is NodeUse.OWN}
    common = _nodes(sorted(node for node in shared if node.path not in own))
    return "\n".join([shown, *([f"shared nodes: {common}"] if common else []), _summary(inventory)])


def _summary(inventory: Inventory) -> str:
    unwell = sum(not device.healthy for device in inventory.devices)
    return f"{len(inventory.devices)} devices, {unwell} of them not healthy"


def _row(device: Device, record: Record | None) -> tuple[str, ...]:
    rdma = device.rdma
    numa = "" if device.numa_node is None else str(device.numa_node)
    guids = f"{rdma.node_guid or '-'} {rdma.port_guid or '-'}" if rdma else ""
    model = f"{device.model or ''} {device.slice.profile or ''}".strip() if device.slice else device.model or ""
    return (device.id, device.kind, device.role, device.link_layer or "", f"{device.vendor_id}:{device.product_id}",
            device.class_code, device.driver or "", numa, model, device.uuid or "", device.parent or "",
            device.netdev or "", guids, (rdma.port_state or "") if rdma else "",
            _nodes(node for node in device.nodes if node.use is not NodeUse.SHARED), _health(device),
            _owner(device, record))


def _health(device: Device) -> str:
    if device.health:
        return "; ".join(device.health)
    return "ok; netdev in another namespace" if device.netdev_away else "ok"


def _owner(device: Device, record: Record | None) -> str:
    if record:
        return f"{record.owner}; blocked: {record.blocked}" if record.blocked else str(record.owner)
    return f"the host: {'; '.join(device.host_use)}" if device.host_use else ""


def _nodes(nodes: Iterable[CharNode]) -> str:
    return " ".join(f"{node.path.removeprefix('/dev/')}={node.major}:{node.minor}" for node in nodes)


def topology(found: Topology, inventory: Inventory) -> str:
    """The processors in a line, then a table of NUMA nodes with the devices near each."""
    cpu = found.cpu
    head = (f"{cpu.model or 'unknown processor'} ({cpu.arch}): {cpu.sockets} sockets, {cpu.cores_per_socket} cores, "
            f"{cpu.threads_per_core} threads each")
    rows = []
    for node in found.nodes:
        pages = " ".join(f"{size >> 10}KiB:{free}/{total}" for size, (total, free) in node.hugepages.items())
        near = " ".join(device.id for device in inventory.devices if device.numa_node == node.id)
        rows.append((str(node.id), ranges(node.cpus), f"{node.memory / _GIBIBYTE:.1f}", f"{node.free / _GIBIBYTE:.1f}",
                     pages, " ".join(map(str, node.distances)), near))
    return printable(head) + "\n" + table(
        ("node", "cpus", "GiB", "free GiB", "huge pages free/all", "distances", "devices"), rows)


def ranges(numbers: Iterable[int]) -> str:
    """Numbers in the kernel's list format: ``0-3,8``."""
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in id_runs(numbers))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns under their names in capitals; a column that says nothing is left out."""
    cells = [[printable(cell) for cell in row] for row in rows]
    shown = [index for index in range(len(columns)) if not rows or any(row[index] for row in cells)]
    lines = [[columns[index].upper() for index in shown], *([row[index] for index in shown] for row in cells)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
                     for line in lines)


def printable(text: str) -> str:
    """What a card or a captured tree says must not steer the terminal."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in text)
