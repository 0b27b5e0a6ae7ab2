# SPDX-License-Identifier: Apache-2.0
"""Describe an emulated host: a YAML file read into frozen records, with errors that name the line to repair.

Every key is explained in ``hosts/small.yaml``. Sizes are bytes inside the records and ``40GiB`` in the file; addresses
are written as the kernel writes them (``0000:3b:00.0``).
"""

import dataclasses
import enum
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import yaml

HOSTS = pathlib.Path(__file__).parent / "hosts"

T = TypeVar("T")

_SIZE = re.compile(r"(\d+) ?(KiB|MiB|GiB|TiB)?")
_UNITS = {None: 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


class DescriptionError(ValueError):
    """The description of a host cannot be used; the message names the file, the key and what is expected there."""


class Kind(enum.StrEnum):
    """Name what runs on a card's wire; it decides which directories the card's functions have."""

    INFINIBAND = "infiniband"
    ROCE = "roce"
    ETHERNET = "ethernet"

    @property
    def rdma(self) -> bool:
        return self is not Kind.ETHERNET


class Fault(enum.StrEnum):
    """A way in which a function is broken from the start.

    ``fallen-off-bus``: configuration space reads ff and the driver's own directories are gone (an NVIDIA Xid 79).
    ``no-driver``: no driver has bound the function. ``no-nodes``: the driver is there, its nodes in /dev are not.
    ``link-down``: the port has no link.
    """

    FALLEN_OFF_BUS = "fallen-off-bus"
    NO_DRIVER = "no-driver"
    NO_NODES = "no-nodes"
    LINK_DOWN = "link-down"


@dataclasses.dataclass(frozen=True)
class NumaNode:
    """A NUMA node, which is a socket here.

    :ivar cores: per core, the numbers of its hardware threads
    :ivar memory: bytes
    :ivar hugepages: page size in bytes -> number of pages
    """

    cores: tuple[tuple[int, ...], ...]
    memory: int
    hugepages: tuple[tuple[int, int], ...] = ()

    @property
    def cpus(self) -> tuple[int, ...]:
        return tuple(sorted(cpu for core in self.cores for cpu in core))


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU.

    :ivar switch: address of the upstream port of the PCIe switch that it is behind
    :ivar mig: pairs of GPU instance and compute instance; not empty means the GPU is in MIG mode
    :ivar memory: bytes
    :ivar total_vfs: virtual functions that it could have, and has none of
    """

    address: str
    vendor: str
    vendor_id: str
    product_id: str
    class_code: str
    driver: str
    driver_version: str
    numa_node: int
    model: str
    uuid: str
    memory: int
    mig: tuple[tuple[int, int], ...] = ()
    faults: frozenset[Fault] = frozenset()
    switch: str | None = None
    total_vfs: int = 0


@dataclasses.dataclass(frozen=True)
class Card:
    """One port of a network card: a physical function and the virtual functions it can have.

    :ivar switch: address of the upstream port of the PCIe switch that it is behind
    :ivar fabric: ports of cards with the same fabric reach each other
    :ivar vf_faults: index of a virtual function -> its faults
    :ivar vf_rates: whether its driver limits what its virtual functions send
    """

    address: str
    kind: Kind
    vendor_id: str
    product_id: str
    vf_product_id: str
    class_code: str
    driver: str
    vf_driver: str
    numa_node: int
    model: str
    netdev: str
    fabric: str
    total_vfs: int
    enabled_vfs: int
    rate: str
    faults: frozenset[Fault] = frozenset()
    vf_faults: tuple[tuple[int, frozenset[Fault]], ...] = ()
    switch: str | None = None
    vf_rates: bool = True

    def vf_netdev(self, index: int) -> str:
        """The name that the host's rules give to the interface of a virtual function."""
        return f"{self.netdev}v{index}"


@dataclasses.dataclass(frozen=True)
class HostDescription:
    name: str
    nodes: tuple[NumaNode, ...]
    gpus: tuple[Gpu, ...] = ()
    cards: tuple[Card, ...] = ()


@dataclasses.dataclass(frozen=True)
class _GpuDefaults:
    vendor_id: str
    driver: str
    version: str
    class_code: str


_GPU_VENDORS = {
    "nvidia": _GpuDefaults("10de", "nvidia", "550.90.07", "030200"),
    "amd": _GpuDefaults("1002", "amdgpu", "6.8.5", "038000"),
    "intel": _GpuDefaults("8086", "i915", "", "038000"),
    "example": _GpuDefaults("c0de", "exampleaccel", "1.0", "120000"),
}


@dataclasses.dataclass(frozen=True)
class _CardDefaults:
    vendor_id: str
    product_id: str
    vf_product_id: str
    class_code: str
    driver: str
    vf_driver: str
    model: str
    rate: str


_CARD_KINDS = {
    Kind.INFINIBAND: _CardDefaults(
        "15b3", "101b", "101c", "020700", "mlx5_core", "mlx5_core", "ConnectX-6", "200 Gb/sec (4X HDR)"
    ),
    Kind.ROCE: _CardDefaults(
        "15b3", "101d", "101e", "020000", "mlx5_core", "mlx5_core", "ConnectX-6 Dx", "100 Gb/sec (4X EDR)"
    ),
    Kind.ETHERNET: _CardDefaults("8086", "10c9", "10ca", "020000", "igb", "igbvf", "82576", "1 Gb/sec"),
}

_REQUIRED: Any = object()


class _Section:
    """One mapping of the file: keys are taken one by one, and what nobody took is an error."""

    def __init__(self, where: str, data: Any) -> None:
        if not isinstance(data, Mapping):
            raise DescriptionError(f"{where}: expected keys and values, found {data!r}")
        self._where = where
        self._left = dict(data)
        self._known: list[str] = []

    def take(self, key: str, convert: Callable[[Any], T], default: Any = _REQUIRED) -> T:
        self._known.append(key)
        if key not in self._left:
            if default is _REQUIRED:
                raise DescriptionError(f"{self._where}: the key '{key}' is missing")
            return cast(T, default)
        value = self._left.pop(key)
        try:
            return convert(value)
        except DescriptionError:
            raise
        except (TypeError, ValueError, KeyError) as error:
            raise DescriptionError(f"{self._where}.{key}: {value!r} {error}") from error

    def sections(self, key: str) -> list["_Section"]:
        items = self.take(key, _sequence, ())
        return [_Section(f"{self._where}.{key}[{index}]", item) for index, item in enumerate(items)]

    def finish(self) -> None:
        if self._left:
            raise DescriptionError(
                f"{self._where}: unknown key {sorted(map(str, self._left))[0]!r}; known here: {', '.join(self._known)}"
            )


def _sequence(value: Any) -> Sequence[Any]:
    if not isinstance(value, list):
        raise ValueError("is not a list")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or "\n" in value:
        raise ValueError("is not a line of text")
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("is not a whole number of 0 or more")
    return value


def _matching(pattern: str, what: str) -> Callable[[Any], str]:
    def convert(value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise ValueError(f"is not {what}")
        return value

    return convert


_address = _matching(
    r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", "a PCI address such as 0000:3b:00.0, lower case and in quotes"
)
_id = _matching(r"[0-9a-f]{4}", "an identifier of four hexadecimal digits such as '20b0', lower case and in quotes")
_class = _matching(r"[0-9a-f]{6}", "a PCI class of six hexadecimal digits such as '020700', lower case and in quotes")
_interface = _matching(r"[^\s/:{}]{1,15}", "a name for a network interface (1 to 15 characters)")


def _size(value: Any) -> int:
    match = _SIZE.fullmatch(str(value))
    if not match:
        raise ValueError("is not a size such as 40GiB")
    return int(match[1]) * _UNITS[match[2]]


def _one_of(names: Sequence[str]) -> Callable[[Any], str]:
    def convert(value: Any) -> str:
        if value not in names:
            raise ValueError(f"is none of {', '.join(names)}")
        return str(value)

    return convert


def _faults(value: Any) -> frozenset[Fault]:
    return frozenset(Fault(_one_of(list(Fault))(item)) for item in _sequence(value))


def _mig(value: Any) -> tuple[tuple[int, int], ...]:
    if not isinstance(value, Mapping):
        raise ValueError("is not a mapping of GPU instances to lists of compute instances, such as {1: [0], 2: [0]}")
    return tuple((_count(gi), _count(ci)) for gi, instances in sorted(value.items()) for ci in _sequence(instances))


def _vf_faults(value: Any) -> tuple[tuple[int, frozenset[Fault]], ...]:
    if not isinstance(value, Mapping):
        raise ValueError("is not a mapping of VF numbers to lists of faults, such as {1: [no-driver]}")
    return tuple((_count(index), _faults(faults)) for index, faults in sorted(value.items()))


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("is neither true nor false")
    return value


def _hugepages(value: Any) -> tuple[tuple[int, int], ...]:
    if not isinstance(value, Mapping):
        raise ValueError("is not a mapping of page sizes to numbers of pages, such as {2MiB: 1024}")
    return tuple(sorted((_size(size), _count(pages)) for size, pages in value.items()))


def _nodes(sections: Sequence[_Section]) -> tuple[NumaNode, ...]:
    """Number the CPUs as Linux does: first one thread of every core, node by node, then the siblings."""
    read = []
    for section in sections:
        cores, threads = section.take("cores", _count), section.take("threads", _count, 1)
        read.append((cores, threads, section.take("memory", _size), section.take("hugepages", _hugepages, ())))
        section.finish()
    all_cores = sum(cores for cores, *_ in read)
    nodes, first = [], 0
    for cores, threads, memory, hugepages in read:
        numbered = tuple(
            tuple(core + thread * all_cores for thread in range(threads)) for core in range(first, first + cores)
        )
        nodes.append(NumaNode(numbered, memory, hugepages))
        first += cores
    return tuple(nodes)


def _gpu(section: _Section) -> Gpu:
    vendor = section.take("vendor", _one_of(list(_GPU_VENDORS)))
    defaults = _GPU_VENDORS[vendor]
    address = section.take("address", _address)
    gpu = Gpu(
        address=address,
        vendor=vendor,
        vendor_id=defaults.vendor_id,
        product_id=section.take("product", _id),
        class_code=defaults.class_code,
        driver=section.take("driver", _text, defaults.driver),
        driver_version=section.take("driver_version", _text, defaults.version),
        numa_node=section.take("numa_node", _count),
        model=section.take("model", _text),
        uuid=section.take("uuid", _text, _uuid(vendor, address)),
        memory=section.take("memory", _size, 0),
        mig=section.take("mig", _mig, ()),
        faults=section.take("faults", _faults, frozenset()),
        switch=section.take("switch", _address, None),
        total_vfs=section.take("total_vfs", _count, 0),
    )
    section.finish()
    if gpu.mig and vendor != "nvidia":
        raise DescriptionError(f"{address}: only an NVIDIA GPU can have MIG instances, this one is {vendor}")
    return gpu


def _uuid(vendor: str, address: str) -> str:
    """A UUID as each driver writes it; it is a function of the address so that two runs agree."""
    number = int(re.sub("[:.]", "", address), 16)
    return f"GPU-6d1a0b55-0000-4000-8000-{number:012x}" if vendor == "nvidia" else f"{0x5A0000000000 + number:016x}"


def _card(section: _Section) -> Card:
    kind = Kind(section.take("kind", _one_of(list(Kind))))
    defaults = _CARD_KINDS[kind]
    netdev = section.take("netdev", _interface)
    driver = section.take("driver", _text, None)
    card = Card(
        address=section.take("address", _address),
        kind=kind,
        vendor_id=section.take("vendor", _id, defaults.vendor_id),
        product_id=section.take("product", _id, defaults.product_id),
        vf_product_id=section.take("vf_product", _id, defaults.vf_product_id),
        class_code=section.take("class", _class, defaults.class_code),
        driver=driver or defaults.driver,
        vf_driver=driver or defaults.vf_driver,
        numa_node=section.take("numa_node", _count),
        model=section.take("model", _text, defaults.model),
        netdev=netdev,
        fabric=section.take("fabric", _text, netdev),
        total_vfs=section.take("total_vfs", _count, 0),
        enabled_vfs=section.take("enabled_vfs", _count, 0),
        rate=section.take("rate", _text, defaults.rate),
        faults=section.take("faults", _faults, frozenset()),
        vf_faults=section.take("vf_faults", _vf_faults, ()),
        switch=section.take("switch", _address, None),
        vf_rates=section.take("vf_rates", _flag, True),
    )
    section.finish()
    if card.enabled_vfs > card.total_vfs:
        raise DescriptionError(f"{card.address}: {card.enabled_vfs} VFs are enabled, but total_vfs is {card.total_vfs}")
    if len(card.vf_netdev(max(0, card.total_vfs - 1))) > 15:
        raise DescriptionError(f"{card.address}: '{netdev}' leaves no room for the names of its VFs; shorten it")
    return card


def parse(data: Any, where: str = "description") -> HostDescription:
    """Turn the content of a file into a description.

    :param data: what YAML made of the file
    :param where: the file's name, for messages
    :raises DescriptionError: naming the key and what was expected
    """
    section = _Section(where, data)
    host = HostDescription(
        name=section.take("name", _text),
        nodes=_nodes(section.sections("nodes")),
        gpus=tuple(map(_gpu, section.sections("gpus"))),
        cards=tuple(map(_card, section.sections("cards"))),
    )
    section.finish()
    _check(host, where)
    return host


def _check(host: HostDescription, where: str) -> None:
    if not host.nodes:
        raise DescriptionError(f"{where}.nodes: a host has at least one NUMA node")
    devices: list[Gpu | Card] = [*host.gpus, *host.cards]
    for device in devices:
        if device.numa_node >= len(host.nodes):
            raise DescriptionError(
                f"{where}: {device.address} is on NUMA node {device.numa_node}, but there are {len(host.nodes)} nodes"
            )
    _all_different(where, "address", [device.address for device in devices])
    _all_different(where, "netdev", [card.netdev for card in host.cards])


def _all_different(where: str, what: str, values: Sequence[str]) -> None:
    twice = sorted({value for value in values if values.count(value) > 1})
    if twice:
        raise DescriptionError(f"{where}: {what} {twice[0]} is used twice")


def load(name: str | pathlib.Path) -> HostDescription:
    """Read a description.

    :param name: a file, or the name of one in ``tests/fakehost/hosts`` without its ending
    :raises DescriptionError: there is no such file, or its content cannot be used
    """
    path = pathlib.Path(name)
    if not path.exists() and path.name == str(name):
        path = HOSTS / f"{name}.yaml"
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)  # ten times faster than that in Python
    except OSError as error:
        known = ", ".join(sorted(file.stem for file in HOSTS.glob("*.yaml")))
        raise DescriptionError(f"{path}: {error.strerror}; give a file or one of: {known}") from error
    except yaml.YAMLError as error:
        raise DescriptionError(f"{path}: not YAML: {error}") from error
    return parse(data, path.name)
