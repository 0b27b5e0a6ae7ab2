# SPDX-License-Identifier: Apache-2.0
"""Read a VM as OpenNebula describes it to a driver, typed. Pure.

MEMORY and SIZE are MiB in OpenNebula and bytes here; CPU is a share of cores in hundredths.
"""

import decimal
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from onedriver import pciaddress
from onedriver.errors import BadInput
from onedriver.pciaddress import PciAddress
from onedriver.section import Section

if TYPE_CHECKING:
    from onedriver.document import Element

MIB = 1 << 20
HEX4 = re.compile(r"[0-9A-Fa-f]{4}")
PRODUCT = re.compile(r"[0-9A-Fa-f]{4}(?:[0-9A-Fa-f]{4})?")
GUID = re.compile(r"[0-9a-f]{4}(:[0-9a-f]{4}){3}|[0-9a-f]{2}(:[0-9a-f]{2}){7}")
UUID = re.compile(r"[A-Za-z0-9-]{1,64}")
VLANS = re.compile(r"[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*")
ID_LIST = re.compile(r"[0-9]{1,5}(,[0-9]{1,5})*")
#: Limits of a disk's speed; 0 is none.
SPEEDS = tuple(f"{which}_{unit}_SEC" for which in ("TOTAL", "READ", "WRITE") for unit in ("BYTES", "IOPS"))
OVS = "openvswitch"  # value of BRIDGE_TYPE
NOT_ROOTS = frozenset({"CDROM", "SWAP", "FS"})  # types of disks that cannot be a root
CEPH_IMAGE = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]{0,127}/[A-Za-z0-9_.][A-Za-z0-9_.-]{0,127}")
CEPH_USER = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]{0,127}")


class Nic(NamedTuple):
    """Describe a NIC of a VM, and how it is connected: bridge, VLANs and bandwidth limits.

    :ivar target: its name on the host, set by the core: ``one-<vm>-<nic>``
    :ivar bandwidth: KB/s in and out, averages; None is no limit
    :ivar bridge_type: linux, openvswitch…, lower case
    :ivar vlan_id: of its network; its meaning depends on the type of the bridge
    :ivar nested_vlans: whether further VLANs are within its own (CVLANS)
    :ivar filtered: whether OpenNebula's network driver drops frames with other MAC or IP addresses
    :ivar attach: whether it is the subject of attach_nic or detach_nic
    """

    id: int
    mac: str
    bridge: str | None
    target: str
    mtu: int | None = None
    bandwidth: tuple[int | None, int | None] = (None, None)
    bridge_type: str = "linux"
    vlan_id: int | None = None
    tagged: frozenset[int] = frozenset()
    nested_vlans: bool = False
    filtered: bool = False
    attach: bool = False


class Pci(NamedTuple):
    """Describe a PCI device of a VM: the request in the template, and the device that the core chose.

    :ivar address: address chosen by the core; None if it chose none, which a driver must refuse
    :ivar uuid: of a GPU or slice, as the probe reported it
    :ivar nic_id: of a PCI element that is a network interface to OpenNebula (TYPE=NIC), which is also how any
        device is plugged while the VM runs
    :ivar spoof_check, trust: of a virtual function; None keeps the present setting
    :ivar sent: KB/s that a virtual function may send; None is no limit
    """

    id: int | None
    address: PciAddress | None
    vendor: str | None
    device: str | None
    class_code: str | None
    uuid: str | None = None
    nic_id: int | None = None
    mac: str | None = None
    vlan_id: int | None = None
    spoof_check: bool | None = None
    trust: bool | None = None
    node_guid: str | None = None
    port_guid: str | None = None
    sent: int | None = None
    attach: bool = False

    def chosen(self) -> PciAddress:
        """Return the address that the core chose; raise BadInput without one, as on a full host with enforcement."""
        if self.address is None:
            raise BadInput("the VM requests a PCI device, but the scheduler assigned none (no ADDRESS): deploy it with "
                           "--enforce, or let the scheduler place it")
        return self.address


class Ceph(NamedTuple):
    """Identify the Ceph RBD image of a disk as ``pool/image``, and the Ceph user to open it as."""

    image: str
    user: str | None


class Disk(NamedTuple):
    """Describe a disk of a VM: its image, format, size, drivers and I/O limits.

    :ivar type: FILE, BLOCK, RBD, CDROM, fs, swap…, upper case
    :ivar size: bytes; None if unknown
    :ivar original_size: bytes of its image; None if it has none
    :ivar save: whether changes are saved (persistent image)
    :ivar attach: whether it is the subject of attach_disk or detach_disk
    :ivar speed: the limits of :data:`SPEEDS` that it has, in bytes or operations per second
    """

    id: int
    type: str
    format: str | None
    source: str | None
    size: int | None
    read_only: bool
    save: bool
    clone: bool
    tm_mad: str | None
    attach: bool = False
    speed: Mapping[str, int] = MappingProxyType({})
    ceph: Ceph | None = None
    original_size: int | None = None


class NumaNode(NamedTuple):
    """Hold the host CPUs and memory node that the core chose for one NUMA node of a VM.

    :ivar cpus: the host CPUs the core chose on this node
    :ivar memory_node: the host's NUMA node
    """

    cpus: frozenset[int]
    memory_node: int


class Topology(NamedTuple):
    """Describe the NUMA topology of a VM: its pin policy, huge pages and nodes.

    :ivar pin_policy: NONE, CORE, THREAD, SHARED or NODE_AFFINITY
    :ivar hugepage: size of its huge pages in bytes; None for ordinary pages
    """

    pin_policy: str
    hugepage: int | None
    nodes: tuple[NumaNode, ...]


class Vm(NamedTuple):
    """Describe a VM as oned passes it to a driver: capacity, devices, disks, placement and context.

    :ivar stime: time of its creation in seconds since the epoch: an OpenNebula whose database was restored reuses
        ids of other VMs
    :ivar cpu: share of host CPUs in hundredths (CPU=0.5 is 50)
    :ivar memory: bytes
    :ivar graphics: the unparsed attributes of its screen (see :mod:`onedriver.graphics`)
    :ivar uid: id of the VM's owner; None if unknown
    :ivar hpc: unparsed JOB, SHARED_MEMORY and ELASTIC of HPC; the owner may change them at any time
    :ivar snapshots: names on the host, as printed by snapshot_create
    :ivar system_ds: id of the system datastore it is on; None before its first host
    :ivar context: variables for the guest, in OpenNebula's order; the owner may change them at any time, so their
        names are validated at their use (:mod:`onedriver.node.context`): a VM with bad ones can still be ended
    :ivar affinity: unparsed AFFINITY of HPC: its owner may change it at any time, and ending the VM must not fail
        for it
    :ivar own: attributes of the template that only this driver knows, by upper-case name (LXD_…)
    """

    id: int
    stime: int | None
    lcm_state: int
    deploy_id: str | None
    cpu: int
    vcpu: int
    memory: int
    nics: tuple[Nic, ...]
    pcis: tuple[Pci, ...]
    disks: tuple[Disk, ...]
    topology: Topology
    snapshots: frozenset[str]
    context: dict[str, str]
    own: dict[str, str]
    graphics: dict[str, str]
    uid: int | None
    hpc: dict[str, str]
    system_ds: int | None
    host: str | None
    affinity: str | None = None

    @property
    def root(self) -> Disk:
        """Return the root disk, its first image; raise BadInput if there is none."""
        found = min((disk for disk in self.disks if disk.type not in NOT_ROOTS), key=lambda disk: disk.id, default=None)
        if found is None:
            raise BadInput(f"VM {self.id} has no disk with an image for its container")
        return found

    @property
    def is_persistent(self) -> bool:
        return any(disk.type not in NOT_ROOTS for disk in self.disks) and self.root.save


def vm(element: "Element", own_prefix: str = "LXD_") -> Vm:
    """Read a VM.

    :param own_prefix: prefix of the calling driver's attributes
    :raises BadInput: an attribute is missing or not of its type
    """
    top = Section(element, "VM")
    top.name = f"VM {top.number('ID')}"
    template = top.section("TEMPLATE")
    if template is None:
        raise BadInput(f"{top.name} has no TEMPLATE")
    template.name = top.name
    number = top.number("ID")
    history = last_history(top)
    return Vm(
        id=number,
        stime=top.integer("STIME"),
        lcm_state=top.integer("LCM_STATE") or 0,
        deploy_id=top.text("DEPLOY_ID"),
        cpu=cpu(template),
        vcpu=template.integer("VCPU", 1) or 1,
        memory=template.number("MEMORY", 1) * MIB,
        nics=tuple(nic(section) for section in template.sections("NIC")),
        pcis=tuple(pci(section) for section in template.sections("PCI")),
        disks=tuple(disk(section) for section in template.sections("DISK")),
        topology=topology(template),
        snapshots=frozenset(section.text("HYPERVISOR_ID") or "" for section in template.sections("SNAPSHOT")),
        context=context(template),
        own=own_attributes((template, top.section("USER_TEMPLATE")), own_prefix),
        graphics=graphics(template), uid=top.integer("UID"),
        hpc=hpc((template, top.section("USER_TEMPLATE"))),
        system_ds=history.integer("DS_ID") if history else None,
        host=history.text("HOSTNAME") if history else None,
        affinity=affinity((template, top.section("USER_TEMPLATE"))))


def cpu(template: Section) -> int:
    value = template.fraction("CPU") or decimal.Decimal(1)
    return max(1, round(value * 100))


def last_history(top: Section) -> Section | None:
    records = top.section("HISTORY_RECORDS")
    return max(records.sections("HISTORY"), key=lambda record: record.integer("SEQ") or 0, default=None) \
        if records else None


def nic(section: Section) -> Nic:
    section.required("MAC")
    section.required("TARGET")
    return Nic(
        id=section.number("NIC_ID"), mac=section.mac("MAC") or "", bridge=section.interface("BRIDGE"),
        target=section.interface("TARGET") or "", mtu=section.integer("MTU", 68),
        bandwidth=(section.integer("INBOUND_AVG_BW", 1), section.integer("OUTBOUND_AVG_BW", 1)),
        bridge_type=(section.text("BRIDGE_TYPE") or "linux").lower(), vlan_id=section.integer("VLAN_ID"),
        tagged=vlans(section, "VLAN_TAGGED_ID"), nested_vlans=section.text("CVLANS") is not None,
        filtered=bool(section.flag("FILTER_MAC_SPOOFING") or section.flag("FILTER_IP_SPOOFING")),
        attach=section.flag("ATTACH") or False)


def vlans(section: Section, key: str) -> frozenset[int]:
    """Parse numbers and ranges: ``10,20-22``."""
    text = section.matching(key, VLANS, "VLANs such as 10,20-22")
    found = set[int]()
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def pci(section: Section) -> Pci:
    address = section.text("ADDRESS")
    return Pci(
        id=section.integer("PCI_ID"),
        address=pciaddress.from_opennebula(address) if address else None,
        vendor=hex4(section, "VENDOR"), device=product(section, "DEVICE"), class_code=hex4(section, "CLASS"),
        uuid=section.matching("UUID", UUID, "letters, digits and dashes"),
        nic_id=section.integer("NIC_ID"), mac=section.mac("MAC"), vlan_id=section.integer("VLAN_ID"),
        spoof_check=section.flag("SPOOFCHK"), trust=section.flag("TRUST"),
        node_guid=guid(section, "NODE_GUID"), port_guid=guid(section, "PORT_GUID"),
        sent=section.integer("OUTBOUND_AVG_BW", 1),
        attach=section.flag("ATTACH") or False)


def hex4(section: Section, key: str) -> str | None:
    value = section.matching(key, HEX4, "four hexadecimal digits")
    return value and value.lower()


def product(section: Section, key: str) -> str | None:
    """Parse a product number; slices and shares of GPUs may have eight digits (:mod:`onedriver.pciaddress`)."""
    value = section.matching(key, PRODUCT, "four hexadecimal digits, or eight for a slice or a share of a GPU")
    return value and value.lower()


def guid(section: Section, key: str) -> str | None:
    """Parse a GUID in the kernel's format, groups of four digits, or as bytes."""
    value = (section.text(key) or "").lower()
    if not value:
        return None
    if not GUID.fullmatch(value):
        raise BadInput(f"{section.name}: {key} is {value[:60]!r}, but must be a GUID such as 0002:c903:0000:0001")
    digits = value.replace(":", "")
    return ":".join(digits[start:start + 4] for start in range(0, 16, 4))


def disk(section: Section) -> Disk:
    size, original = section.integer("SIZE"), section.integer("ORIGINAL_SIZE")
    return Disk(
        id=section.number("DISK_ID"), type=(section.text("TYPE") or "FILE").upper(),
        format=section.text("FORMAT") or section.text("DRIVER"), source=section.text("SOURCE"),
        size=None if size is None else size * MIB, read_only=section.flag("READONLY") or False,
        save=section.flag("SAVE") or False, clone=section.flag("CLONE") is not False, tm_mad=section.text("TM_MAD"),
        attach=section.flag("ATTACH") or False,
        speed={key: limit for key in SPEEDS if (limit := section.integer(key))}, ceph=ceph(section),
        original_size=None if original is None else original * MIB)


def ceph(section: Section) -> Ceph | None:
    """Read the Ceph attributes of a disk, except CEPH_CONF: such a file can make programs write anywhere."""
    if (section.text("TYPE") or "").upper() != "RBD":
        return None
    image = section.matching("SOURCE", CEPH_IMAGE, "pool/image of Ceph")
    return Ceph(image, section.matching("CEPH_USER", CEPH_USER, "a user of Ceph")) if image else None


def topology(template: Section) -> Topology:
    section = template.section("TOPOLOGY")
    nodes = tuple(numa_node(node) for node in template.sections("NUMA_NODE"))
    if section is None:
        return Topology("NONE", None, nodes)
    hugepage = section.integer("HUGEPAGE_SIZE", 1)
    policy = section.choice("PIN_POLICY", {"NONE", "CORE", "THREAD", "SHARED"}) or "NONE"
    if section.text("NODE_AFFINITY") is not None and policy == "NONE":
        policy = "NODE_AFFINITY"
    return Topology(policy, None if hugepage is None else hugepage * MIB, nodes)


def numa_node(section: Section) -> NumaNode:
    cpus = section.matching("CPUS", ID_LIST, "a list of CPUs such as 0,4")
    return NumaNode(frozenset(map(int, cpus.split(","))) if cpus else frozenset(), section.number("MEMORY_NODE_ID"))


def context(template: Section) -> dict[str, str]:
    section = template.section("CONTEXT")
    if section is None:
        return {}
    return section.texts()


def graphics(template: Section) -> dict[str, str]:
    section = template.section("GRAPHICS")
    return {key.upper(): text for key, text in section.texts().items()} if section else {}


def affinity(sections: tuple[Section | None, ...]) -> str | None:
    found = (section.section("HPC") for section in sections if section)
    return next((text for section in found if section and (text := section.text("AFFINITY"))), None)


def hpc(sections: tuple[Section | None, ...]) -> dict[str, str]:
    found = next((own for section in sections if section and (own := section.section("HPC"))), None)
    return {"JOB": found.text("JOB") or "", "SHARED_MEMORY": found.text("SHARED_MEMORY") or "",
            "ELASTIC": found.text("ELASTIC") or ""} if found else {}


def own_attributes(sections: tuple[Section | None, ...], prefix: str) -> dict[str, str]:
    return {key.upper(): text for section in sections if section
            for key, text in section.texts(prefix).items()}
