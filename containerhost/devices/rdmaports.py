# SPDX-License-Identifier: Apache-2.0
"""Read the ports of RDMA devices in detail, and how the host shares RDMA devices between network namespaces.

Sources: Documentation/ABI/stable/sysfs-class-infiniband; module parameter ``netns_mode`` of ib_core, which ``rdma
system set netns`` changes too.
"""

import dataclasses
import enum
import ipaddress
import re
from collections.abc import Iterator

from containerhost.devices import pci
from containerhost.devices.model import Device
from containerhost.devices.rdma import state_of
from containerhost.linux.sysfs import Host

_GID = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4}){7}")
_PKEY = re.compile(r"0x[0-9a-f]{4}")
_NO_GID, _NO_PKEY = ":".join(["0000"] * 8), "0x0000"
_MODE = "/sys/module/ib_core/parameters/netns_mode"


class NamespaceMode(enum.StrEnum):
    """Name which network namespaces see an RDMA device: all, or only its own."""

    SHARED = "shared"
    EXCLUSIVE = "exclusive"


@dataclasses.dataclass(frozen=True, slots=True)
class Gid:
    """Describe an address of a port.

    :ivar index: its index for programs (NCCL_IB_GID_INDEX)
    :ivar gid: in the format of sysfs
    :ivar kind: ``IB/RoCE v1`` or ``RoCE v2``
    :ivar netdev: the interface whose address a RoCE GID contains
    """

    index: int
    gid: str
    kind: str | None
    netdev: str | None

    @property
    def address(self) -> str:
        """Return the address as IP addresses are written: a RoCE GID of an IPv4 address is that."""
        address = ipaddress.IPv6Address(self.gid)
        return str(address.ipv4_mapped or address)


@dataclasses.dataclass(frozen=True, slots=True)
class Port:
    """Describe an RDMA port: its link, partition keys and GIDs.

    :ivar number: the kernel counts from 1
    :ivar state: ``active``, ``down``, …
    :ivar rate: as the driver writes it: ``200 Gb/sec (4X HDR)``
    :ivar pkeys: partition keys by index, hexadecimal; the highest bit says full member
    """

    number: int
    state: str | None
    rate: str | None
    lid: str | None
    pkeys: tuple[str, ...]
    gids: tuple[Gid, ...]


def namespace_mode(host: Host) -> NamespaceMode | None:
    """Return how RDMA devices are shared; None without an RDMA driver and before Linux 5.3, which only shares."""
    told = host.text(_MODE)
    return {"Y": NamespaceMode.SHARED, "N": NamespaceMode.EXCLUSIVE}.get(told or "")


def ports(host: Host, device: Device) -> tuple[Port, ...]:
    """Return the ports of a device's RDMA device, as far as this network namespace may see it."""
    if device.rdma is None:
        return ()
    directory = f"{pci.directory(host, device.address)}/infiniband/{device.rdma.ibdev}/ports"
    numbers = sorted(int(name) for name in host.names(directory) if name.isascii() and name.isdigit() and len(name) < 4)
    return tuple(_port(host, f"{directory}/{number}", number) for number in numbers)


def _port(host: Host, directory: str, number: int) -> Port:
    return Port(
        number=number,
        state=state_of(host.text(f"{directory}/state")),
        rate=host.text(f"{directory}/rate"),
        lid=host.text(f"{directory}/lid"),
        pkeys=tuple(key for _, key in _table(host, f"{directory}/pkeys", _PKEY, _NO_PKEY)),
        gids=tuple(Gid(index, gid, host.text(f"{directory}/gid_attrs/types/{index}"),
                       host.text(f"{directory}/gid_attrs/ndevs/{index}"))
                   for index, gid in _table(host, f"{directory}/gids", _GID, _NO_GID)))


def _table(host: Host, directory: str, pattern: re.Pattern[str], empty: str) -> Iterator[tuple[int, str]]:
    """Yield the entries of a port's table that are in use, by index."""
    for index in sorted(int(name) for name in host.names(directory) if name.isascii() and name.isdigit()):
        value = (host.text(f"{directory}/{index}") or "").lower()
        if pattern.fullmatch(value) and value != empty:
            yield index, value
