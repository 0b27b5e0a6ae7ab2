# SPDX-License-Identifier: Apache-2.0
"""Suggest the filter of the host probe, and templates of hosts and VMs, for a host's offers. Pure."""

import json
from collections.abc import Iterable, Sequence

from containerhost.devices.model import Device
from containerhost.inventory.topology import Topology
from containerhost.operator.suggest.offers import Offer
from containerhost.operator.suggest.sizes import HOST_SHARE, Size
from onedriver import template
from onedriver.node.devices import product
from onedriver.node.probes import KIB, MIB, kind
from onedriver.pciaddress import from_device_id

_PREFIX = "hpc-"


def pci_filter(found: Sequence[Offer]) -> str:
    """Return the option ``pci_filter`` of a node's options (TOML), with the short addresses that each line permits."""
    rows = [f"    {json.dumps(kind(offer.first))},  # {offer.name}: "
            f"{' '.join(from_device_id(each.id).short for each in offer.devices)}" for offer in found]
    return "\n".join(["pci_filter = [", *rows, "]"])


def host(topology: Topology) -> str:
    """Write the memory that the core must leave to the host (OpenNebula, "Overcommitment"): RESERVED_MEM in KiB."""
    memory = sum(node.memory for node in topology.nodes)
    return template.line("RESERVED_MEM", memory // HOST_SHARE // KIB)


def vm(size: Size, image: str, driver: str) -> str:
    """Write the template of a VM with these devices.

    :param driver: the driver that runs it: ``lxdone`` or ``onedock``
    """
    name = size.name.replace(".", "-")
    return "\n".join((
        template.lines({"NAME": f"{_PREFIX}{name}", "CPU": size.cpus, "VCPU": size.cpus, "MEMORY": size.memory // MIB}),
        template.vector("DISK", {"IMAGE": image}),
        template.vector("CONTEXT", {"NETWORK": "YES"}),
        *(_pci(offer.first) for offer, count in size.devices for _ in range(count)),
        template.line("SCHED_REQUIREMENTS", f"HYPERVISOR={driver}")))


def vms(found: Iterable[Size], image: str, driver: str) -> dict[str, str]:
    """Return the templates by the names of their sizes."""
    return {size.name: vm(size, image, driver) for size in found}


def _pci(device: Device) -> str:
    return template.vector("PCI", {"VENDOR": device.vendor_id, "DEVICE": product(device),
                                   "CLASS": device.class_code[:4]})
