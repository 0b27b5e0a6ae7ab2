# SPDX-License-Identifier: Apache-2.0
"""Emulate network functions: RDMA side (infiniband, infiniband_verbs, infiniband_mad) and interface.

Formats: kernel Documentation/ABI/stable/sysfs-class-infiniband and ABI/testing/sysfs-class-net.
"""

from collections.abc import Iterator, Sequence

from tests.fakehost import pci
from tests.fakehost.description import Kind
from tests.fakehost.entries import Entry, File, Link, Node
from tests.fakehost.functions import NetFunction

INFINIBAND_MAJOR = 231
_FIRST_MINORS = {"umad": 0, "issm": 64, "uverbs": 192}
# The 65th device of each kind and those after it have majors of their own (ib_uverbs and ib_umad allocate them).
_OVERFLOW_MAJORS = {"umad": 238, "issm": 237, "uverbs": 236}
_RDMA_CM = "sys/devices/virtual/misc/rdma_cm"
RDMA_CM_MINOR = 58
MISC_MAJOR = 10

ARPHRD_ETHER, ARPHRD_INFINIBAND = 1, 32


def function_entries(function: NetFunction) -> Iterator[Entry]:
    """The RDMA side, which is there because the driver has bound the function and the card answers."""
    if not function.card.kind.rdma or not function.bound or function.fallen:
        return
    if not function.rdma_away:
        yield from _ibdev_entries(function, f"{pci.of(function)}/infiniband/mlx5_{function.number}")
    yield from _char_entries(function, "infiniband_verbs", "uverbs", abi_version="1")
    yield from _char_entries(function, "infiniband_mad", "umad", port="1")
    if function.card.kind is Kind.INFINIBAND:
        yield from _char_entries(function, "infiniband_mad", "issm", port="1")


def shared_entries(functions: Sequence[NetFunction]) -> Iterator[Entry]:
    """The connection manager's node, which all RDMA functions share."""
    if not any(function.card.kind.rdma for function in functions):
        return
    yield File(f"{_RDMA_CM}/dev", f"{MISC_MAJOR}:{RDMA_CM_MINOR}\n")
    yield File(f"{_RDMA_CM}/uevent", f"MAJOR={MISC_MAJOR}\nMINOR={RDMA_CM_MINOR}\nDEVNAME=infiniband/rdma_cm\n")
    yield Link(f"{_RDMA_CM}/subsystem", "sys/class/misc")
    yield Link("sys/class/misc/rdma_cm", _RDMA_CM)
    yield File("sys/class/infiniband_verbs/abi_version", "6\n")
    yield File("sys/class/infiniband_mad/abi_version", "5\n")
    yield Node("dev/infiniband/rdma_cm", MISC_MAJOR, RDMA_CM_MINOR)
    yield namespace_mode(exclusive=False)


def namespace_mode(exclusive: bool) -> File:
    """Return the parameter of ib_core that says how network namespaces share RDMA devices."""
    return File("sys/module/ib_core/parameters/netns_mode", "N\n" if exclusive else "Y\n")


def majors(functions: Sequence[NetFunction]) -> dict[str, int]:
    """Names of drivers in /proc/devices -> major numbers."""
    if not any(function.card.kind.rdma for function in functions):
        return {}
    return {"infiniband_mad": INFINIBAND_MAJOR, "infiniband_verbs": INFINIBAND_MAJOR}


def hardware_address(function: NetFunction) -> str:
    """The address of the interface: six octets, or IPoIB's twenty (queue pair, subnet prefix, port GUID; RFC 4391)."""
    if function.card.kind is not Kind.INFINIBAND:
        return function.identity.mac
    if function.hwaddr:
        return function.hwaddr
    guid = function.identity.port_guid.replace(":", "")
    octets = f"000010{0x80 + function.number:02x}fe80000000000000{guid}"
    return ":".join(octets[start : start + 2] for start in range(0, 40, 2))


def interface_attributes(function: NetFunction) -> dict[str, str]:
    """The attributes of the interface that a TAP cannot have by itself -> their content, without the line's end."""
    infiniband = function.card.kind is Kind.INFINIBAND
    return {
        "address": hardware_address(function),
        "addr_len": "20" if infiniband else "6",
        "dev_id": "0x0",
        "dev_port": "0",
        "operstate": "up" if function.link_up else "down",
        "carrier": "1" if function.link_up else "0",
    }


def interface_entries(function: NetFunction) -> Iterator[Entry]:
    """The interface of a bound function as a directory, for a tree that stands alone."""
    if not function.bound or function.fallen:
        return
    path = pci.of(function)
    directory = f"{path}/net/{function.netdev}"
    infiniband = function.card.kind is Kind.INFINIBAND
    attributes = interface_attributes(function) | {
        "type": str(ARPHRD_INFINIBAND if infiniband else ARPHRD_ETHER),
        "mtu": "2044" if infiniband else "1500",
        "flags": "0x1003" if function.index is None else "0x1002",
        "ifindex": str(10 + function.number),
        "uevent": f"INTERFACE={function.netdev}\nIFINDEX={10 + function.number}",
    }
    for name, value in attributes.items():
        yield File(f"{directory}/{name}", value + "\n", 0o644)
    yield Link(f"{directory}/device", path)
    yield Link(f"{directory}/subsystem", "sys/class/net")
    yield Link(f"sys/class/net/{function.netdev}", directory)


def _ibdev_entries(function: NetFunction, directory: str) -> Iterator[Entry]:
    infiniband = function.card.kind is Kind.INFINIBAND
    pf_guid = function.identity.node_guid if function.index is None else None
    for name, value in (
        ("node_guid", function.identity.node_guid),
        ("sys_image_guid", pf_guid or function.identity.node_guid[:-4] + "0000"),
        ("node_type", "1: CA"),
        ("node_desc", f"fakehost mlx5_{function.number}"),
        ("fw_ver", "28.39.1002"),
        ("hca_type", f"MT{int(function.product_id, 16)}"),
        ("board_id", "MT_0000000838"),
        ("ports/1/state", "4: ACTIVE" if function.link_up else "1: DOWN"),
        ("ports/1/phys_state", "5: LinkUp" if function.link_up else "3: Disabled"),
        ("ports/1/rate", function.card.rate),
        ("ports/1/link_layer", "InfiniBand" if infiniband else "Ethernet"),
        ("ports/1/lid", f"{function.number + 1:#x}" if infiniband else "0x0"),
        ("ports/1/sm_lid", "0x1" if infiniband else "0x0"),
        ("ports/1/gids/0", f"fe80:0000:0000:0000:{function.identity.port_guid}"),
        ("ports/1/pkeys/0", "0xffff"),
        ("ports/1/gid_attrs/ndevs/0", function.netdev),
        ("ports/1/gid_attrs/types/0", "IB/RoCE v1"),
        *_second_gid(function),
        *_counters(function),
    ):
        yield File(f"{directory}/{name}", value + "\n")
    yield Link(f"{directory}/device", pci.of(function))
    yield Link(f"{directory}/subsystem", "sys/class/infiniband")
    yield Link(f"sys/class/infiniband/mlx5_{function.number}", directory)


def _counters(function: NetFunction) -> Sequence[tuple[str, str]]:
    """Numbers that differ between functions, for the files of a port that count."""
    names = ("port_rcv_data", "port_xmit_data", "port_rcv_packets", "port_xmit_packets", "port_rcv_errors",
             "port_xmit_discards", "port_xmit_wait", "symbol_error", "link_downed")
    return tuple((f"ports/1/counters/{name}", str(1000 * function.number + place)) for place, name in enumerate(names))


def _second_gid(function: NetFunction) -> Sequence[tuple[str, str]]:
    """RoCE has each address twice, once for each version of the protocol; empty entries are zeros."""
    port, empty = "ports/1", ":".join(["0000"] * 8)
    if function.card.kind is not Kind.ROCE:
        return ((f"{port}/gids/1", empty), (f"{port}/pkeys/1", "0x0000"))
    return ((f"{port}/gids/1", f"fe80:0000:0000:0000:{function.identity.port_guid}"),
            (f"{port}/gid_attrs/ndevs/1", function.netdev), (f"{port}/gid_attrs/types/1", "RoCE v2"))


def _char_entries(function: NetFunction, subsystem: str, kind: str, **attributes: str) -> Iterator[Entry]:
    path, name = pci.of(function), f"{kind}{function.number}"
    if function.number < 64:
        major, minor = INFINIBAND_MAJOR, _FIRST_MINORS[kind] + function.number
    else:
        major, minor = _OVERFLOW_MAJORS[kind], function.number - 64
    directory = f"{path}/{subsystem}/{name}"
    yield File(f"{directory}/dev", f"{major}:{minor}\n")
    yield File(f"{directory}/ibdev", f"mlx5_{function.number}\n")
    yield File(f"{directory}/uevent", f"MAJOR={major}\nMINOR={minor}\nDEVNAME=infiniband/{name}\n")
    for key, value in attributes.items():
        yield File(f"{directory}/{key}", value + "\n")
    yield Link(f"{directory}/device", path)
    yield Link(f"{directory}/subsystem", f"sys/class/{subsystem}")
    yield Link(f"sys/class/{subsystem}/{name}", directory)
    if function.nodes:
        yield Node(f"dev/infiniband/{name}", major, minor)
