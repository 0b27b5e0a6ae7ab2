# SPDX-License-Identifier: Apache-2.0
"""Translate a VM of OpenNebula to a container's spec. Pure: the same VM, options and host give the same spec."""

import re
from collections.abc import Mapping

from containerhost.allocation import sharedmemory
from containerhost.devices.grants import GPU_CAPABILITIES
from containerhost.engines import gpubounds
from containerhost.engines.bounds import marked
from containerhost.engines.spec import BridgedNic, ContainerSpec, DirectoryDisk, IoLimit, RootDisk, Security
from lxdone import cloudinit
from lxdone.conf import Options
from onedriver.errors import BadInput, NotSupported
from onedriver.node import context, limits, validation
from onedriver.node.limits import NodeCores, cpu, elastic, elastic_gpus, memory, processes
from onedriver.node.names import labels, name
from onedriver.section import own_flag, restarts_to_migrate
from onedriver.vm import OVS, Disk, Nic, Vm

IMAGE_LABEL = "one.image"  # fingerprint of the image that its root was created from
NESTING, PRIVILEGED = "LXD_SECURITY_NESTING", "LXD_SECURITY_PRIVILEGED"
LIBRARIES = "LXD_GPU_CAPABILITIES"
PROCESS_LIMIT = "LXD_PROCESS_LIMIT"
LIVE_MIGRATION = "LXD_LIVE_MIGRATION"
GIB = 1 << 30
KILOBYTE = 8 * 1000  # bits, in OpenNebula's bandwidth attributes
VOLATILE = "FS"
SWAP = "SWAP"
IMAGES = frozenset({"FILE", "BLOCK", "RBD", "CDROM"})  # types of disks that have content
NUMBER_OF_DISK = re.compile(r"[0-9]{1,5}")


def spec(vm: Vm, options: Options, cores: NodeCores, *, packed: bool = False
         ) -> ContainerSpec:
    """Return the part of the spec that the template determines: no image, no parts.

    :param packed: whether the image of its root is, or was, packed
    :param cores: the host's
    :raises BadInput, NotSupported: the template requests something unsupported or forbidden
    """
    context.require_names(vm.context)
    found = ContainerSpec(
        name=name(vm.id), image="", cpu=cpu(vm, cores), memory=memory(vm),
        root=RootDisk(options.storage_pool, root_size(vm.root, options, packed=packed), io_limit(vm.root)),
        security=security(vm.own, options), gpu_libraries=gpu_capabilities(vm.own) or frozenset(),
        processes=processes(vm.own, PROCESS_LIMIT, options.process_limit),
        cloud_init=cloudinit.documents(vm.context), labels=labels(vm))
    wanted = gpu_capabilities(vm.own)
    gpus = elastic_gpus(vm, options.gpu_capabilities if wanted is None else wanted)
    return gpubounds.marked(marked(found, elastic(vm, found.cpu, found.memory)), gpus)


def security(own: Mapping[str, str], options: Options) -> Security:
    """Return the security options of the attributes with the prefix LXD_; unknown ones are refused."""
    restarts_to_migrate(own, LIVE_MIGRATION)
    unknown = sorted(own.keys() - {NESTING, PRIVILEGED, LIBRARIES, PROCESS_LIMIT, LIVE_MIGRATION})
    if unknown:
        raise NotSupported(f"the template has {', '.join(unknown)[:200]}; the supported ones of LXD are "
                           f"{LIBRARIES}, {PROCESS_LIMIT} and {LIVE_MIGRATION}, and {NESTING} and {PRIVILEGED}, if the "
                           "administrator allows them")
    return Security(privileged=allowed(own, PRIVILEGED, options.allow_privileged),
                    nesting=allowed(own, NESTING, options.allow_nesting))


def gpu_capabilities(own: Mapping[str, str]) -> frozenset[str] | None:
    """Return the GPU driver's libraries that the template requests; None if unset.

    They are for a GPU that the VM has or may get while it runs.

    :raises BadInput: a name is invalid
    """
    text = own.get(LIBRARIES, "").strip().lower()
    if not text:
        return None
    names = frozenset(name.strip() for name in text.split(",")) if text != "none" else frozenset()
    if names - set(GPU_CAPABILITIES):
        raise BadInput(f"{LIBRARIES} is {text[:60]!r}, but must be none or some of {', '.join(GPU_CAPABILITIES)}")
    return names


def allowed(own: Mapping[str, str], key: str, permitted: bool) -> bool:
    asked = own_flag(own, key)
    if asked and not permitted:
        raise NotSupported(f"{key}=YES is not allowed on this host; its administrator can allow it in /etc/lxdone.toml")
    return asked


def has_size_of_image(disk: Disk) -> bool:
    """Return whether the template does not set the size of a disk."""
    return disk.size is not None and disk.original_size is not None and disk.size <= disk.original_size


def root_size(disk: Disk, options: Options, *, packed: bool) -> int | None:
    """Return the maximum bytes of the root; None is no limit.

    OpenNebula sets a disk's size to that of its image, which for a packed image is the packed size.
    """
    return options.packed_root_size * GIB if packed and has_size_of_image(disk) else disk.size


def require_disks(vm: Vm) -> None:
    """Raise BadInput or NotSupported on disks that the container could not have as in the template."""
    first = vm.root
    if first.type not in IMAGES:
        raise NotSupported(f"disk {first.id} is of type {first.type}; the root of a container is an image "
                           f"({', '.join(sorted(IMAGES))})")
    if first.read_only:
        raise NotSupported(f"disk {first.id} is READONLY; the root of a container is writable")
    for disk in vm.disks:
        if disk is not first:
            require_further(disk)


def require_further(disk: Disk) -> None:
    """Raise BadInput or NotSupported on a disk that a container cannot have besides its root."""
    if SWAP in (disk.type, (disk.format or "").upper()):
        raise NotSupported(f"disk {disk.id} is swap space, which containers do not support (no swapon): MEMORY is all "
                           "of its memory")
    if disk.type not in IMAGES | {VOLATILE}:
        raise NotSupported(f"disk {disk.id} is of type {disk.type}; besides its root, a container can have images "
                           f"({', '.join(sorted(IMAGES))}) and volatile disks (TYPE=fs)")


def further(vm: Vm) -> tuple[Disk, ...]:
    """Return the disks of the container besides the root."""
    first = vm.root
    return tuple(disk for disk in vm.disks if disk.type in IMAGES | {VOLATILE} and disk is not first)


def unpacked_limit(vm: Vm, options: Options) -> int:
    """Return the maximum unpacked bytes of the VM's root disk."""
    return (vm.root.size or 0) + options.unpacked_limit * GIB


def is_volatile(disk: Disk) -> bool:
    return disk.type == VOLATILE


def context_disk(vm: Vm) -> int:
    """Return the number of the context disk created by the TM driver; raise BadInput if there is none."""
    number = vm.context.get("DISK_ID", "")
    if not NUMBER_OF_DISK.fullmatch(number):
        raise BadInput(f"the context of VM {vm.id} has files, but {number[:60]!r} for the number of the disk with them "
                       "(DISK_ID)")
    return int(number)


def is_read_only(disk: Disk) -> bool:
    return disk.read_only or disk.type == "CDROM"


def directory_disk(disk: Disk, directory: str) -> DirectoryDisk:
    return DirectoryDisk(str(disk.id), directory, f"/media/{disk.id}", is_read_only(disk), io_limit(disk))


def io_limit(disk: Disk) -> IoLimit:
    """Return a disk's limits; raise NotSupported if one direction limits both bytes and operations, unlike LXD."""
    found = limits.io_limit(disk)
    if (found.read_bytes and found.read_iops) or (found.write_bytes and found.write_iops):
        raise NotSupported(f"disk {disk.id} requests the limits {dict(disk.speed)}; LXD can limit reading, and "
                           "writing, by bytes or by operations per second, not by both")
    return found


def disk(vm: Vm, number: str) -> Disk:
    """Return a disk by its number; raise BadInput if the VM has no such disk."""
    for found in vm.disks:
        if str(found.id) == number:
            return found
    raise BadInput(f"VM {vm.id} has no disk {number[:60]!r}")


def resized(vm: Vm, disk_id: str, size: str) -> tuple[Vm, Disk]:
    """Return the VM with a resized disk, and that disk.

    :param size: MiB
    :raises BadInput: the VM has no such disk
    """
    before, wanted = validation.disk_size(vm, disk_id, size)
    after = before._replace(size=wanted)
    return vm._replace(disks=tuple(after if disk is before else disk for disk in vm.disks)), after


def nics(vm: Vm) -> tuple[BridgedNic, ...]:
    return tuple(nic(vm.id, wanted) for wanted in vm.nics)


def nic(vm_id: int, wanted: Nic) -> BridgedNic:
    """Return a NIC, named ``eth<NIC_ID>``, so that its name is independent of other NICs."""
    bridge = validation.bridge(vm_id, wanted)
    vlan, tagged = vlans(vm_id, wanted)
    received, sent = (None if limit is None else limit * KILOBYTE for limit in wanted.bandwidth)
    return BridgedNic(f"eth{wanted.id}", bridge, wanted.target, wanted.mac, wanted.mtu, received, sent,
                      vlan, tagged)


def vlans(vm_id: int, wanted: Nic) -> tuple[int | None, frozenset[int]]:
    """Return the VLANs of a NIC on Open vSwitch; none on a Linux bridge.

    Each start of the container creates a new port: LXD must configure it each time as OpenNebula's network driver
    does at a deployment. On Linux bridges the driver's VLANs are below the bridge, and its rules refer to the NIC's
    name.

    :raises NotSupported: the network driver's settings exceed LXD's
    """
    if wanted.bridge_type != OVS:
        return None, frozenset()
    if wanted.filtered:
        raise NotSupported(f"NIC {wanted.id} of VM {vm_id} is on Open vSwitch with FILTER_MAC_SPOOFING or "
                           "FILTER_IP_SPOOFING, which a restart of the container would end: use a network of Linux "
                           "bridges")
    if wanted.nested_vlans:
        raise NotSupported(f"NIC {wanted.id} of VM {vm_id} is on Open vSwitch with CVLANS, which a restart of the "
                           "container would end")
    return wanted.vlan_id, wanted.tagged


def shared_memory(source: str) -> tuple[DirectoryDisk, ...]:
    """Return the part for a VM's shared memory, given the path of its view on the host."""
    return (DirectoryDisk("shared-memory", source, sharedmemory.TARGET),)
