"""What can be wrong with a device, in words: a complaint says what is found and, where it helps, what to do.

A port that is not active is no complaint: an InfiniBand VF's port stays down until it has a driver and GUIDs the
subnet manager knows, and a link may come up any time. The port's state is shown beside the health instead.
"""

from collections.abc import Iterable, Iterator

from containerhost.devices.model import CharNode
from containerhost.sysfs import Host

# Drivers that reserve a function for virtual machines or user space: no host driver serves it meanwhile.
_RESERVING = frozenset({"vfio-pci", "mlx5_vfio_pci", "nvgrace_gpu_vfio_pci", "pci-stub", "pciback", "xen-pciback",
                        "uio_pci_generic", "igb_uio"})
_HEADER = 64  # bytes of configuration space that anybody may read
_TELLING = 16  # bytes; up to here lie the command, status and class registers, never all ones in a live function


def of_function(host: Host, folder: str, driver: str | None) -> tuple[str, ...]:
    """Complaints that hold for any PCI function.

    :param folder: the function's folder below /sys
    """
    complaints = []
    if _silent(host, folder):
        complaints.append("fallen off the bus: its configuration space reads ff; it needs a reset or a power cycle")
    if driver is None:
        complaints.append("no driver is bound to it")
    elif driver in _RESERVING:
        complaints.append(f"bound to {driver}, which reserves it for virtual machines; bind the host's own driver")
    return tuple(complaints)


def _silent(host: Host, folder: str) -> bool:
    """A missing card reads as ones. A healthy VF's vendor and device do too (SR-IOV 1.1, 3.4.1), the rest does not."""
    header = host.data(f"{folder}/config", _HEADER)
    return header is not None and len(header) >= _TELLING and header == b"\xff" * len(header)


def of_nodes(host: Host, nodes: Iterable[CharNode]) -> Iterator[str]:
    """One complaint for each node that is not in /dev as the driver numbers it."""
    for node in nodes:
        fault = host.node_fault(node.path, node.major, node.minor)
        if fault:
            yield fault
