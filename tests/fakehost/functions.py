# SPDX-License-Identifier: Apache-2.0
"""The PCI functions of an emulated host as they are at one moment.

A record here says everything that the directories of a function in /sys, /proc and /dev follow from, so a change of the
host is a new record. Numbers that a kernel counts up (DRM minors, mlx5_N) are given in the order of the description.
"""

import dataclasses
import itertools

from tests.fakehost.description import Card, Fault, Gpu, HostDescription, Kind

LANES = 16
_GUID_BASE = 0xB8CEF603 << 32


@dataclasses.dataclass(frozen=True)
class PciLink:
    """Describe a card's PCI Express link as sysfs shows it.

    :ivar lanes: that are in use, of LANES
    :ivar fatal: errors that the kernel has counted, of the kind that needs a reset
    :ivar nonfatal: of the kind that loses a transaction
    """

    lanes: int = LANES
    fatal: int = 0
    nonfatal: int = 0


@dataclasses.dataclass(frozen=True)
class GpuFunction:
    """A GPU now.

    :ivar drm: the number of card<N>; its render node is 128 more
    :ivar minor: the driver's own number of the GPU (the N of /dev/nvidia<N>)
    :ivar bound: the driver has it
    :ivar fallen: configuration space reads ff
    """

    gpu: Gpu
    drm: int
    minor: int
    bound: bool = True
    fallen: bool = False
    nodes: bool = True
    link: PciLink = PciLink()

    @property
    def address(self) -> str:
        return self.gpu.address

    @property
    def driver(self) -> str | None:
        return self.gpu.driver if self.bound else None

    @property
    def switch(self) -> str | None:
        return self.gpu.switch


@dataclasses.dataclass(frozen=True)
class Identity:
    """Hold the addresses of a network function on the wire.

    GUIDs are written as in sysfs: four groups of four hexadecimal digits.
    """

    node_guid: str
    port_guid: str
    mac: str


@dataclasses.dataclass(frozen=True)
class NetFunction:
    """A physical or virtual function of a network card now.

    :ivar index: the number of a virtual function; None for the physical one
    :ivar number: the N of mlx5_N, uverbsN, umadN
    :ivar num_vfs: how many virtual functions are enabled, for the physical function
    :ivar netdev: the name of its interface when the driver has just bound it
    :ivar hwaddr: the address that was set on its IPoIB interface instead of its own
    :ivar rdma_away: its RDMA device is in another network namespace
    """

    card: Card
    address: str
    index: int | None
    number: int
    netdev: str
    identity: Identity
    hwaddr: str | None = None
    num_vfs: int = 0
    bound: bool = True
    fallen: bool = False
    nodes: bool = True
    link_up: bool = True
    rdma_away: bool = False
    link: PciLink = PciLink()

    @property
    def native_driver(self) -> str:
        return self.card.driver if self.index is None else self.card.vf_driver

    @property
    def driver(self) -> str | None:
        return self.native_driver if self.bound else None

    @property
    def switch(self) -> str | None:
        return self.card.switch

    @property
    def product_id(self) -> str:
        return self.card.product_id if self.index is None else self.card.vf_product_id


Function = GpuFunction | NetFunction


def vf_address(card: Card, index: int) -> str:
    """Where SR-IOV's First VF Offset and VF Stride put a virtual function, as cards of its kind choose them."""
    domain, bus, rest = card.address.split(":")
    device, port = rest.split(".")
    offset, stride = {
        Kind.INFINIBAND: (1, 1),
        Kind.ROCE: (2 + int(port) * (card.total_vfs - 1), 1),
        Kind.ETHERNET: (128, 2),
    }[card.kind]
    number = int(device, 16) * 8 + int(port) + offset + stride * index
    return f"{domain}:{int(bus, 16) + number // 256:02x}:{number // 8 % 32:02x}.{number % 8}"


def format_guid(value: int) -> str:
    return ":".join(f"{value:016x}"[start : start + 4] for start in range(0, 16, 4))


def default_identity(address: str, index: int | None) -> Identity:
    """GUIDs and MAC that are a function of the address of the physical function and the VF's number."""
    _, bus, rest = address.split(":")
    device, function = rest.split(".")
    place = int(bus, 16) << 8 | int(device, 16) << 3 | int(function)
    order = 0 if index is None else index + 1
    guid = _GUID_BASE | place << 16 | order << 1
    octets = (0xB8CEF6 << 24 | place << 8 | order).to_bytes(6, "big")
    return Identity(format_guid(guid), format_guid(guid | 1), ":".join(f"{octet:02x}" for octet in octets))


def gpu_functions(host: HostDescription) -> list[GpuFunction]:
    minors = {gpu.driver: itertools.count() for gpu in host.gpus}
    return [
        GpuFunction(
            gpu=gpu,
            drm=drm,
            minor=next(minors[gpu.driver]),
            bound=Fault.NO_DRIVER not in gpu.faults,
            fallen=Fault.FALLEN_OFF_BUS in gpu.faults,
            nodes=Fault.NO_NODES not in gpu.faults,
        )
        for drm, gpu in enumerate(host.gpus)
    ]


def pf_function(card: Card, number: int) -> NetFunction:
    return _net_function(card, None, number, card.address, card.netdev, card.faults)


def vf_function(card: Card, index: int, number: int) -> NetFunction:
    faults = dict(card.vf_faults).get(index, frozenset())
    return _net_function(card, index, number, vf_address(card, index), card.vf_netdev(index), faults)


def _net_function(
    card: Card, index: int | None, number: int, address: str, netdev: str, faults: frozenset[Fault]
) -> NetFunction:
    return NetFunction(
        card=card,
        address=address,
        index=index,
        number=number,
        netdev=netdev,
        identity=default_identity(card.address, index),
        bound=Fault.NO_DRIVER not in faults,
        fallen=Fault.FALLEN_OFF_BUS in faults,
        nodes=Fault.NO_NODES not in faults,
        link_up=Fault.LINK_DOWN not in faults,
    )


def functions(host: HostDescription) -> list[Function]:
    """All functions that the host has when it has just started, VFs enabled."""
    found: list[Function] = list(gpu_functions(host))
    numbers = itertools.count()
    for card in host.cards:
        pf = pf_function(card, next(numbers))
        found.append(dataclasses.replace(pf, num_vfs=card.enabled_vfs))
        found.extend(vf_function(card, index, next(numbers)) for index in range(card.enabled_vfs))
    return found
