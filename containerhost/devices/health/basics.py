# SPDX-License-Identifier: Apache-2.0
"""Check that a function responds, has a usable driver, and has its nodes in /dev."""

from collections.abc import Iterable, Iterator

from containerhost.devices.health.rules import Finding, Rule, Verdict
from containerhost.devices.model import CharNode
from containerhost.linux.sysfs import Host

# Drivers that reserve a function for virtual machines or user space: no host driver serves it meanwhile. Devices may
# have a variant of vfio-pci (Linux, drivers/vfio/pci), all of which are named alike: mlx5_vfio_pci.
_RESERVING = frozenset({"vfio-pci", "pci-stub", "pciback", "xen-pciback", "uio_pci_generic", "igb_uio"})
_VFIO_VARIANT = "_vfio_pci"
_HEADER = 64  # bytes of configuration space that every user may read
_TELLING = 16  # bytes; up to here lie the command, status and class registers, never all ones in a live function

SILENT = Rule(
    name="config-space", verdict=Verdict.SICK, reads="the first 64 bytes of config",
    says="fallen off the bus: its configuration space reads ff; it needs a reset or a power cycle",
    well="it answers again",
    source="PCI Express Base Specification 2.3.2: a read that nobody completes returns ones")
NO_DRIVER = Rule(
    name="driver", verdict=Verdict.SICK, reads="driver", says="no driver is bound to it",
    well="a driver is bound", source="Linux Documentation/driver-api/driver-model/binding.rst")
RESERVED = Rule(
    name="reserving-driver", verdict=Verdict.SICK, reads="driver",
    says="bound to {driver}, which reserves it for virtual machines; bind the host's own driver",
    well="the host's own driver is bound", source="Linux Documentation/driver-api/vfio.rst")
RULES = (SILENT, NO_DRIVER, RESERVED)


def response_findings(host: Host, directory: str) -> Iterator[Finding]:
    """Report a function that does not respond: reads from a missing card return all ones.

    A healthy VF's vendor and device ids do too (SR-IOV 1.1, 3.4.1), but no other fields."""
    header = host.data(f"{directory}/config", _HEADER)
    if header is not None and len(header) >= _TELLING and header == b"\xff" * len(header):
        yield SILENT.finds()


def driver_findings(driver: str | None) -> Iterator[Finding]:
    if driver is None:
        yield NO_DRIVER.finds()
    elif reserves(driver):
        yield RESERVED.finds(driver=driver)


def reserves(driver: str) -> bool:
    """Return whether a driver keeps a function for virtual machines or user space."""
    return driver in _RESERVING or driver.endswith(_VFIO_VARIANT)


def of_nodes(host: Host, nodes: Iterable[CharNode]) -> Iterator[str]:
    """Report each node that is missing from /dev or has another number than the driver reports."""
    for node in nodes:
        fault = host.node_fault(node.path, node.major, node.minor)
        if fault:
            yield fault
