# SPDX-License-Identifier: Apache-2.0
"""Emulate what every PCI function and driver shows in /sys/bus/pci.

Formats: kernel Documentation/ABI/testing/sysfs-bus-pci; the first bytes of ``config`` as in the PCI specification's
type 0 header.
"""

import struct
from collections.abc import Iterator

from tests.fakehost.entries import Action, Entry, File, Link
from tests.fakehost.functions import LANES, Function, GpuFunction, NetFunction, vf_address

BUS = "sys/bus/pci"


def directory(address: str, switch: str | None = None) -> str:
    """The directory of a function; every bus is a root bus here, but those behind a switch.

    :param switch: address of the switch's upstream port, which is below a root port on the bus before it; its
        downstream ports are on the bus after it
    """
    if switch is None:
        return f"sys/devices/pci{address[:7]}/{address}"
    domain, bus, _ = switch.split(":")
    before, after = (f"{domain}:{int(bus, 16) + step:02x}" for step in (-1, 1))
    port = f"{after}:{int(address.split(':')[1], 16) % 32:02x}.0"
    return f"sys/devices/pci{before}/{before}:01.0/{switch}/{port}/{address}"


def of(function: Function) -> str:
    """The directory of a function as it is."""
    return directory(function.address, function.switch)


def function_entries(function: Function) -> Iterator[Entry]:
    """Yield what does not depend on the function's vendor."""
    address, path = function.address, of(function)
    vendor_id, product_id, class_code, numa_node = _identity(function)
    for name, value in (
        ("vendor", f"0x{vendor_id}"),
        ("device", f"0x{product_id}"),
        ("class", f"0x{class_code}"),
        ("subsystem_vendor", f"0x{vendor_id}"),
        ("subsystem_device", "0x0001"),
        ("revision", "0xa1"),
        ("enable", "1" if function.bound else "0"),
        ("current_link_speed", "Unknown" if function.fallen else "16.0 GT/s PCIe"),
        ("current_link_width", "63" if function.fallen else str(function.link.lanes)),
        ("max_link_speed", "16.0 GT/s PCIe"),
        ("max_link_width", str(LANES)),
        ("aer_dev_fatal", f"DLP {function.link.fatal}\nTOTAL_ERR_FATAL {function.link.fatal}"),
        ("aer_dev_nonfatal", f"CmpltTO {function.link.nonfatal}\nTOTAL_ERR_NONFATAL {function.link.nonfatal}"),
        ("modalias", modalias(vendor_id, product_id, class_code)),
    ):
        yield File(f"{path}/{name}", value + "\n")
    yield File(f"{path}/numa_node", f"{numa_node}\n", 0o644)
    yield File(f"{path}/driver_override", "(null)\n", 0o644)
    yield File(f"{path}/config", _config(function, vendor_id, product_id, class_code), 0o644)
    yield File(f"{path}/uevent", _uevent(function, vendor_id, product_id, class_code), 0o644)
    yield Action(f"{path}/reset", "reset", address, mode=0o200)
    yield Link(f"{path}/subsystem", BUS)
    yield Link(f"{BUS}/devices/{address}", path)
    if function.driver:
        yield Link(f"{path}/driver", f"{BUS}/drivers/{function.driver}")
        yield Link(f"{BUS}/drivers/{function.driver}/{address}", path)
    if isinstance(function, NetFunction):
        yield from _sriov_entries(function, path)
    elif function.gpu.total_vfs:
        yield File(f"{path}/sriov_totalvfs", f"{function.gpu.total_vfs}\n")
        yield File(f"{path}/sriov_numvfs", "0\n", 0o644)


def _sriov_entries(function: NetFunction, path: str) -> Iterator[Entry]:
    if function.index is not None:
        yield Link(f"{path}/physfn", directory(function.card.address, function.switch))
    elif function.card.total_vfs:
        yield File(f"{path}/sriov_totalvfs", f"{function.card.total_vfs}\n")
        yield Action(f"{path}/sriov_numvfs", "sriov_numvfs", function.address, f"{function.num_vfs}\n")
        yield File(f"{path}/sriov_vf_device", f"{function.card.vf_product_id}\n")
        for index in range(function.num_vfs):
            yield Link(f"{path}/virtfn{index}", directory(vf_address(function.card, index), function.switch))


def driver_entries(driver: str, version: str) -> Iterator[Entry]:
    """A driver's directory, without the functions that it has bound.

    :param version: empty when the module shows none, as in-tree modules do
    """
    yield Action(f"{BUS}/drivers/{driver}/bind", "bind", driver, mode=0o200)
    yield Action(f"{BUS}/drivers/{driver}/unbind", "unbind", driver, mode=0o200)
    yield Link(f"{BUS}/drivers/{driver}/module", f"sys/module/{driver}")
    yield File(f"sys/module/{driver}/refcnt", "1\n")
    if version:
        yield File(f"sys/module/{driver}/version", version + "\n")


def bus_entries() -> Iterator[Entry]:
    yield Action(f"{BUS}/drivers_probe", "drivers_probe", mode=0o200)
    yield File(f"{BUS}/drivers_autoprobe", "1\n", 0o644)


def _identity(function: Function) -> tuple[str, str, str, int]:
    match function:
        case GpuFunction(gpu=gpu):
            return gpu.vendor_id, gpu.product_id, gpu.class_code, gpu.numa_node
        case NetFunction(card=card):
            return card.vendor_id, function.product_id, card.class_code, card.numa_node


def _config(function: Function, vendor_id: str, product_id: str, class_code: str) -> bytes:
    if function.fallen:
        return b"\xff" * 64
    is_vf = isinstance(function, NetFunction) and function.index is not None
    # The identifiers of a VF read ff in its own configuration space (SR-IOV specification 3.4.1.1).
    vendor, product = (0xFFFF, 0xFFFF) if is_vf else (int(vendor_id, 16), int(product_id, 16))
    header = struct.pack("<HHHHI", vendor, product, 0x0406, 0x0010, int(class_code, 16) << 8 | 0xA1)
    return header.ljust(64, b"\0")


def modalias(vendor_id: str, product_id: str, class_code: str) -> str:
    vendor, product, code = vendor_id.upper(), product_id.upper(), class_code.upper()
    return (f"pci:v0000{vendor}d0000{product}sv0000{vendor}sd00000001"
            f"bc{code[:2]}sc{code[2:4]}i{code[4:]}")


def _uevent(function: Function, vendor_id: str, product_id: str, class_code: str) -> str:
    driver = f"DRIVER={function.driver}\n" if function.driver else ""
    return (
        f"{driver}PCI_CLASS={int(class_code, 16):X}\nPCI_ID={vendor_id.upper()}:{product_id.upper()}\n"
        f"PCI_SUBSYS_ID={vendor_id.upper()}:0001\nPCI_SLOT_NAME={function.address}\n"
    )
