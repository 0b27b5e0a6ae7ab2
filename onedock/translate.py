# SPDX-License-Identifier: Apache-2.0
"""Translate a VM of OpenNebula to the spec of a container on Docker. Pure."""

from containerhost.allocation import sharedmemory
from containerhost.engines.bounds import marked
from containerhost.engines.spec import ContainerSpec, Mount, RootDisk, Security
from onedock.attributes import PROCESS_LIMIT, Attributes
from onedock.conf import Options
from onedriver.errors import NotSupported
from onedriver.node import validation
from onedriver.node.limits import NodeCores, cpu, elastic, elastic_gpus, io_limit, memory, processes
from onedriver.node.names import labels, name
from onedriver.vm import Disk, Vm

VOLATILE = "FS"
DATA = frozenset({"FILE", "BLOCK", VOLATILE})
MEDIA = "/media"  # below it a disk is at its number


def spec(vm: Vm, attributes: Attributes, options: Options, cores: NodeCores) -> ContainerSpec:
    """Return the part of the spec that the template determines: no image, no parts, no mounts.

    :param cores: the host's
    :raises BadInput, NotSupported: the template requests something unsupported or forbidden
    """
    require_disks(vm)
    if vm.topology.hugepage:
        raise NotSupported(f"VM {vm.id} requests huge pages, which Docker cannot limit; remove HUGEPAGE_SIZE")
    found = ContainerSpec(
        name=name(vm.id), image="", cpu=cpu(vm, cores), memory=memory(vm),
        root=RootDisk("", vm.root.size if options.root_quota else None, io_limit(vm.root)),
        security=Security(read_only=attributes.read_only), environment=attributes.environment,
        program=attributes.program, labels=labels(vm),
        processes=processes(vm.own, PROCESS_LIMIT, options.process_limit))
    if elastic_gpus(vm, ()) is not None:
        raise NotSupported(f"HPC of VM {vm.id} has ELASTIC with gpus: a node on Docker keeps a VM's GPUs, because the "
                           "elastic service would need far more rights to take a device node from a container there; "
                           "remove gpus")
    return marked(found, elastic(vm, found.cpu, found.memory))


def volumes(vm: Vm) -> tuple[Disk, ...]:
    """Return the disks besides the root."""
    first = vm.root
    return tuple(disk for disk in vm.disks if disk != first)


def require_disks(vm: Vm) -> None:
    """Raise BadInput or NotSupported on disks that the container could not have as in the template."""
    first = vm.root
    if first.type not in DATA:
        raise NotSupported(f"disk {first.id} is of type {first.type}; the root of a container on Docker comes from an "
                           "onedock datastore")
    if first.read_only:
        raise NotSupported(f"disk {first.id} is READONLY; use DOCKER_READ_ONLY=YES for a read-only root")
    for disk in volumes(vm):
        require_volume(disk)


def require_volume(disk: Disk) -> None:
    if disk.type == "SWAP":
        raise NotSupported(f"disk {disk.id} is swap space, which containers do not support: MEMORY is all of its "
                           "memory")
    if disk.type not in DATA:
        raise NotSupported(f"disk {disk.id} is of type {disk.type}; a container can have volatile disks (TYPE=fs) and "
                           "images with a file system")
    if disk.speed:
        raise NotSupported(f"disk {disk.id} requests the limits {dict(disk.speed)}; on Docker only the root's rate "
                           "can be limited")


def require_resizable(vm: Vm, disk_id: str, size: str) -> tuple[Disk, int]:
    """Refuse to resize a disk that does not support it.

    :param size: MiB
    :returns: a disk besides the root, and bytes
    """
    found, wanted = validation.disk_size(vm, disk_id, size)
    if found == vm.root:
        raise NotSupported(f"disk {found.id} is the root of VM {vm.id}, whose size Docker fixes at the container's "
                           "creation; keep data on a volatile disk, which can grow")
    require_volume(found)
    return found, wanted


def mounts(context: str, resolv: str, media: str) -> tuple[Mount, ...]:
    """Return the mounts of a container that the driver created on the host."""
    return (Mount("context", context, "/context"), Mount("resolv", resolv, "/etc/resolv.conf"),
            Mount("media", media, MEDIA, read_only=False, follows=True))


def shared_memory(source: str | None) -> tuple[Mount, ...]:
    """Return the mount of a VM's shared memory, given its path on the host; none without one."""
    return () if source is None else (Mount("shared-memory", source, sharedmemory.TARGET, read_only=False),)
