# SPDX-License-Identifier: Apache-2.0
"""Translate ContainerSpec and Grant to LXD's configuration. Pure.

Keys and values: LXD's instance options and device options documents; Incus has the same. No profile is ever used,
and of the ``raw.*`` keys only ``raw.lxc``, for memory nodes and for limits of control groups: neither daemon has a
key to bind a container's memory (``limits.cpu.nodes`` chooses CPUs). Device names are made from PCI addresses and
node paths, so that two grants which share a node (rdma_cm) name one device, and a device is found again by its grant
alone. They contain no dot: LXD splits its ``volatile.<device>.<key>`` at dots.
"""

import fnmatch
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from containerhost import vendors
from containerhost.devices.grants import GPU_CAPABILITIES, Grant
from containerhost.devices.model import CharNode
from containerhost.engines import bounds, gpubounds, marks
from containerhost.engines.mimepart import mime_part
from containerhost.engines.spec import (
    BlockDevice,
    BridgedNic,
    CloudInit,
    ContainerSpec,
    Cpu,
    DirectoryDisk,
    IoLimit,
    Memory,
    Mount,
    Nic,
    Part,
    PoolDisk,
    Program,
    RootDisk,
    Security,
)
from containerhost.engines.verify import limit_order
from containerhost.errors import SpecError, UnsupportedOnHost
from containerhost.linux.idlist import id_runs
from containerhost.vendors.base import Vendor

Device = dict[str, str]

KERNEL = "limits.kernel."
PERIOD = 100  # ms, the period LXD's percentages use too
HUGE_PAGES = {64 << 10: "64KB", 1 << 20: "1MB", 2 << 20: "2MB", 1 << 30: "1GB"}

# The container is the boundary: every user in it may use its devices. Without a mode, nodes that are 0660 on the host
# would be accessible only to root.
NODE_MODE = "0666"

# A raw disk contains the files of all users, so only the container's root may read it, as on any machine.
BLOCK_MODE = "0600"

# LXD's API extension to attach a GPU by its CDI name, with libraries, to a running container.
CDI_HOTPLUG = "gpu_cdi_hotplug"

# Handled like an API extension: the host has only cgroup v2.
CGROUP2 = "containerhost.cgroup2"

# Labels with the size of a container and its bounds: they change with its limits.
SIZE_LABELS = (bounds.LABEL, gpubounds.LABEL, marks.RESOURCES)

# Limits of cgroup v2 groups in a container. The kernel has 65535 ids for memory control groups, shared by all
# containers, and does not report the group of a process whose path exceeds 4096 bytes: 14 names have at most 255 each.
GROUPS = "lxc.cgroup2.cgroup.max.descendants = 1024\nlxc.cgroup2.cgroup.max.depth = 14"

OWN_CORES = "user.containerhost.cores"  # the exclusive cores of a container
RESERVED_CORES = f"{OWN_CORES}.reserved"  # its former exclusive cores, reserved for a revert
RAW = "raw.lxc"

# The kernel lists no file that is registered in an io_uring whose descriptor is closed
# (IORING_SETUP_REGISTERED_FD_ONLY, io_uring_setup(2)), so open devices could not be found. Programs fall back to other
# calls on ENOSYS (38), as in Docker's containers since 25.
DENIED_CALLS = "security.syscalls.deny"
IO_URING = "io_uring_setup errno 38"


def instance(spec: ContainerSpec, extensions: Collection[str]) -> dict[str, Any]:
    """Return the body of ``POST /1.0/instances``.

    :raises SpecError: the engine cannot express a part of ``spec``, or the daemon lacks an extension for it
    """
    refuse(spec)
    return {
        "name": spec.name,
        "type": "container",
        "profiles": [],
        "ephemeral": False,
        "source": image_source(spec.image),
        "config": instance_config(spec, extensions),
        "devices": instance_devices(spec, extensions),
    }


def refuse(spec: ContainerSpec) -> None:
    """Refuse what LXD does not support.

    :raises SpecError: LXD does not support a part of it: its containers start an init, and get no addresses from
        outside
    """
    for asked, what in ((spec.program != Program(), "given another program"),
                        (spec.security.read_only, "given a root disk that is read-only"),
                        (any(item.follows for item in spec.mounts), "given a directory that follows the host's mounts"),
                        (any(isinstance(part, Nic) and part.setup for part in spec.parts), "given addresses")):
        if asked:
            raise SpecError(f"container {spec.name}: a container on LXD cannot be {what}")


def image_source(image: str) -> dict[str, str]:
    kind = "fingerprint" if re.fullmatch(r"[0-9a-f]{64}", image) else "alias"
    return {"type": "image", kind: image}


def start_config(grants: Collection[Grant], extensions: Collection[str]) -> dict[str, str]:
    """Return the configuration that a container's grants need at its start; a running one only gets the limits."""
    return kernel_limits((grant.limits for grant in grants), extensions) | libraries(
        grants, extensions)


def instance_config(spec: ContainerSpec, extensions: Collection[str]) -> dict[str, str]:
    environment = dict(spec.environment)
    for grant in spec.grants:
        environment.update(grant.environment)
    return {
        # The cloud starts containers, after it has checked their devices; LXD must not when it or the host starts.
        "boot.autostart": "false",
        **limits(spec, extensions),
        **security(spec.security),
        **kernel_limits([spec.limits, *(grant.limits for grant in spec.grants)], extensions),
        **libraries(spec.grants, extensions),
        **prepared_libraries(spec, extensions),
        **cloud_init(spec.cloud_init, extensions),
        **{f"environment.{key}": value for key, value in environment.items()},
        **{f"user.{key}": value for key, value in spec.labels.items()},
    }


def instance_devices(spec: ContainerSpec, extensions: Collection[str]) -> dict[str, Device]:
    devices = {"root": root_disk(spec.root)}
    devices |= {f"mount-{item.name}": mount(item) for item in spec.mounts}
    devices |= devices_of_all(spec.parts, extensions)
    names = [device["name"] for device in devices.values() if "name" in device]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SpecError(f"container {spec.name}: more than one interface would be named {', '.join(twice)}")
    return devices


# Limits.


def limits(spec: ContainerSpec, extensions: Collection[str]) -> dict[str, str]:
    sizes = {f"user.{key}": spec.labels[key] for key in SIZE_LABELS if key in spec.labels}
    found = cpu(spec.cpu, extensions) | memory(spec.memory, extensions) | {"limits.processes": str(spec.processes)}
    if raw := "\n".join(filter(None, (found.get(RAW), groups(extensions)))):
        found[RAW] = raw
    return found | sizes


def groups(extensions: Collection[str]) -> str | None:
    """Return the lines of LXC's configuration that limit the nested control groups of a container, if supported."""
    return GROUPS if CGROUP2 in extensions else None


def is_limit(key: str) -> bool:
    """Return whether :func:`limits` may set a key of an instance's configuration."""
    return key.startswith(("limits.cpu", "limits.memory", "limits.hugepages.", "limits.processes", OWN_CORES, RAW,
                           *(f"user.{key}" for key in SIZE_LABELS)))


def with_limits(instance: Mapping[str, Any], limits: Mapping[str, str], root: Mapping[str, str]) -> dict[str, Any]:
    """Return an instance with new limits, and with a new root disk."""
    kept = {key: value for key, value in instance["config"].items() if not is_limit(key)}
    return {**instance, "config": kept | dict(limits), "devices": instance["devices"] | {"root": dict(root)}}


def cpu(wanted: Cpu, extensions: Collection[str] = ()) -> dict[str, str]:
    """Return the CPU limits.

    With ``cores`` the container runs on exactly these, and its memory comes from ``nodes`` alone. For a mere count,
    ``nodes`` are those of its CPUs, and its memory comes from ``memory_nodes``.

    ``share`` becomes a hard limit of CPU time in each period of 100 ms: 250 % is ``250ms/100ms``.
    """
    config = {"limits.cpu": core_list(wanted.cores) if wanted.cores else str(wanted.count)}
    if wanted.nodes and not wanted.cores and "numa_cpu_placement" in extensions:
        config["limits.cpu.nodes"] = ",".join(map(str, sorted(wanted.nodes)))
    if wanted.bound_memory:
        config[RAW] = memory_binding(wanted.bound_memory, extensions)
    if wanted.own_cores:
        config[OWN_CORES] = core_list(wanted.own_cores)
    if wanted.reserved:
        config[RESERVED_CORES] = core_list(wanted.reserved)
    if wanted.share is not None:
        config["limits.cpu.allowance"] = f"{wanted.share * PERIOD // 100}ms/{PERIOD}ms"
    if wanted.priority is not None:
        config["limits.cpu.priority"] = str(wanted.priority)
    return config


def memory_binding(nodes: Iterable[int], extensions: Collection[str]) -> str:
    """Return the line of LXC's configuration that binds memory: lxc.container.conf(5), CONTROL GROUPS."""
    return f"lxc.cgroup{'2' if CGROUP2 in extensions else ''}.cpuset.mems = {','.join(map(str, sorted(nodes)))}"


def core_list(cores: Iterable[int]) -> str:
    """Format ``{0, 2, 3}`` as ``0-0,2-3``: LXD takes a single number as a count, but never a range."""
    return ",".join(f"{first}-{last}" for first, last in id_runs(cores))


def host_pages(name: str) -> str:
    """Return the extension that stands for host huge pages that can be denied to a container."""
    return f"containerhost.hugepages.{name}"


def memory(wanted: Memory, extensions: Collection[str]) -> dict[str, str]:
    """Return the memory limits: ``size`` is the total; swap is off."""
    config = {
        "limits.memory": str(wanted.size),
        "limits.memory.enforce": "hard",
        "limits.memory.swap": "false",
    }
    if "limits_hugepages" in extensions:
        config |= {f"limits.hugepages.{name}": "0" for name in HUGE_PAGES.values() if host_pages(name) in extensions}
    for page, size in wanted.hugepages.items():
        if page not in HUGE_PAGES:
            raise SpecError(f"huge pages of {page} bytes: LXD limits pages of {', '.join(HUGE_PAGES.values())} only")
        if "limits_hugepages" not in extensions:
            raise UnsupportedOnHost("huge pages are requested, but this daemon lacks the extension limits_hugepages")
        config[f"limits.hugepages.{HUGE_PAGES[page]}"] = str(size)
    return config


def kernel_limits(wanted: Iterable[Mapping[str, str]], extensions: Collection[str]) -> dict[str, str]:
    """Return the ``limits.kernel.<name>`` keys, with the maximum of several parts' limits."""
    most: dict[str, str] = {}
    for limits in wanted:
        for name, value in limits.items():
            most[name] = max(most.get(name, value), value, key=limit_order)
    if most and "kernel_limits" not in extensions:
        raise UnsupportedOnHost(f"limits on {', '.join(most)} are requested, but this daemon lacks the extension "
                                "kernel_limits")
    return {f"{KERNEL}{name}": value for name, value in most.items()}


def of_kernel_limits(keys: Mapping[str, str]) -> dict[str, str]:
    """Return the kernel limits among an instance's keys, by the names of setrlimit(2)."""
    return {key.removeprefix(KERNEL): value for key, value in keys.items() if key.startswith(KERNEL)}


def lacking(present: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the part of ``wanted`` that an instance's configuration lacks; more limits and libraries are allowed."""
    return {key: value for key, value in wanted.items() if key not in present or not has(present[key], key, value)}


def has(present: str, key: str, wanted: str) -> bool:
    if key.startswith(KERNEL):
        return limit_order(present) >= limit_order(wanted)
    return set(wanted.split(",")) <= set(present.split(","))


def security(wanted: Security) -> dict[str, str]:
    """Return the security keys. With its own id map, a container that breaks out has no rights in another."""
    config = {"security.privileged": flag(wanted.privileged), "security.nesting": flag(wanted.nesting),
              DENIED_CALLS: IO_URING}
    if not wanted.privileged:
        config["security.idmap.isolated"] = flag(wanted.isolated)
    return config


def flag(value: bool) -> str:
    return "true" if value else "false"


def cloud_init(wanted: CloudInit, extensions: Collection[str]) -> dict[str, str]:
    prefix = "cloud-init" if "cloud_init" in extensions else "user"
    documents = {
        "user.meta-data": wanted.meta_data,
        f"{prefix}.user-data": acceptable(wanted.user_data),
        f"{prefix}.vendor-data": wanted.vendor_data,
        f"{prefix}.network-config": wanted.network_config,
    }
    return {key: text for key, text in documents.items() if text is not None}


def acceptable(user_data: str | None) -> str | None:
    """Return a tenant's user data in a form that no daemon refuses; cloud-init reports its errors in the container.

    LXD refuses a container whose ``#cloud-config`` is not a mapping for its own YAML parser, which differs from
    cloud-init's (LXD, shared/validate: IsCloudInitUserData).
    """
    if user_data is None or not (user_data.startswith("#cloud-config\n") or "\0" in user_data):
        return user_data
    return mime_part("application/octet-stream" if "\0" in user_data else "text/cloud-config", user_data.encode())


# Devices.


def root_disk(wanted: RootDisk) -> Device:
    device = {"type": "disk", "path": "/", "pool": wanted.pool} | io_limits(wanted.io)
    if wanted.size is not None:
        device["size"] = str(wanted.size)
    return device


def io_limits(wanted: IoLimit) -> Device:
    device = {}
    for key, size, rate in (
        ("limits.read", wanted.read_bytes, wanted.read_iops),
        ("limits.write", wanted.write_bytes, wanted.write_iops),
    ):
        if size is not None and rate is not None:
            raise SpecError(f"LXD limits a disk by bytes or by operations per second: {key} cannot be "
                            f"{size} bytes/s and {rate} operations/s together; request one of them")
        if size is not None:
            device[key] = str(size)
        if rate is not None:
            device[key] = f"{rate}iops"
    return device


def nic(wanted: Nic) -> Device:
    device = {"type": "nic", "nictype": "physical", "parent": wanted.parent, "name": wanted.name}
    if wanted.mac is not None:
        device["hwaddr"] = wanted.mac
    if wanted.mtu is not None:
        device["mtu"] = str(wanted.mtu)
    return device


def bridged_nic(wanted: BridgedNic) -> Device:
    device = {"type": "nic", "nictype": "bridged", "parent": wanted.bridge, "name": wanted.name,
              "host_name": wanted.host_name, "hwaddr": wanted.mac}
    limits = {"mtu": wanted.mtu, "limits.ingress": wanted.received, "limits.egress": wanted.sent, "vlan": wanted.vlan,
              "vlan.tagged": ",".join(map(str, sorted(wanted.tagged))) or None}
    return device | {key: str(value) for key, value in limits.items() if value is not None}


def mount(wanted: Mount) -> Device:
    return {"type": "disk", "source": wanted.source, "path": wanted.target, "readonly": flag(wanted.read_only)}


def block_device(wanted: BlockDevice) -> Device:
    return {"type": "unix-block", "source": wanted.source, "path": wanted.path,
            "mode": BLOCK_MODE}


def directory_disk(wanted: DirectoryDisk) -> Device:
    return mount(Mount(wanted.name, wanted.source, wanted.path, wanted.read_only)) | io_limits(wanted.io)


def devices_of_all(parts: Iterable[Part], extensions: Collection[str]) -> dict[str, Device]:
    return {key: device for part in parts for key, device in devices_of(part, extensions).items()}


def devices_of(part: Part, extensions: Collection[str]) -> dict[str, Device]:
    """Return the LXD devices of a part, the same at boot and when it is attached to a running container."""
    match part:
        case Nic():
            return {f"nic-{part.name}": nic(part)}
        case BridgedNic():
            return {f"nic-{part.name}": bridged_nic(part)}
        case BlockDevice():
            return {f"block-{key(part.name)}": block_device(part)}
        case PoolDisk():
            return {f"disk-{key(part.name)}": {"type": "disk", "pool": part.pool, "source": part.volume,
                                               "path": part.path} | io_limits(part.io)}
        case DirectoryDisk():
            return {f"disk-{key(part.name)}": directory_disk(part)}
        case Grant():
            return devices_of_grant(part, extensions)


def devices_of_grant(grant: Grant, extensions: Collection[str]) -> dict[str, Device]:
    devices: dict[str, Device] = {}
    # LXD's gpu device finds a GPU by some of its nodes, and adds these; an accelerator without such nodes is added by
    # its own.
    brought = gpu_nodes(grant) if grant.gpu else frozenset()
    by_gpu = gpu(grant, extensions) if grant.gpu and brought else None
    if by_gpu:
        devices[f"gpu-{key(grant.device.id)}"] = by_gpu
    for port, netdev in enumerate(grant.netdevs):
        # ``infiniband`` devices would add issm and umad; a physical nic adds only the interface.
        devices[f"net-{key(grant.device.id)}" + (f"-d{port}" if port else "")] = {
            "type": "nic", "nictype": "physical", "parent": netdev.host_name, "name": netdev.name}
    for node in grant.nodes:
        if not (by_gpu and node in brought):
            devices[f"node-{key(node.path.removeprefix('/dev/'))}"] = char_node(node)
    return devices


def gpu_nodes(grant: Grant) -> frozenset[CharNode]:
    """Return the nodes that LXD's gpu device brings itself, as CDI does."""
    patterns = [f"/dev/{pattern}" for pattern in vendors.of(grant.device).lxd_gpu_nodes]
    return frozenset(node for node in grant.nodes if any(fnmatch.fnmatchcase(node.path, each) for each in patterns))


def is_of_part(key: str) -> bool:
    """Return whether a device of an instance came from a part."""
    return key.startswith(("gpu-", "net-", "node-", "nic-", "block-", "disk-"))


def is_of_grant(key: str) -> bool:
    """Return whether a device of an instance came from a grant."""
    return key.startswith(("gpu-", "net-", "node-"))


def is_engines_own(key: str) -> bool:
    """Return whether a key of an instance's configuration is written by the engine, not by a spec."""
    return key.startswith(("volatile.", "image."))


def key(text: str) -> str:
    return re.sub(r"[^0-9A-Za-z]+", "-", text)


def char_node(node: CharNode) -> Device:
    return {"type": "unix-char", "source": node.path, "path": node.path, "mode": NODE_MODE}


def gpu(grant: Grant, extensions: Collection[str]) -> Device | None:
    """Return a device for a whole GPU by PCI address, never by number: ``id=0`` may bring other cards' nodes along.

    :returns: None for a slice without CDI, which is attached by its nodes: LXD's ``gputype=mig`` works at the
        container's start only
    """
    name = cdi_name(grant, extensions)
    if name:
        return {"type": "gpu", "gputype": "mig" if grant.device.slice else "physical", "id": name}
    if grant.device.slice:
        return None
    return {"type": "gpu", "gputype": "physical", "pci": grant.device.address, "mode": NODE_MODE}


def cdi_name(grant: Grant, extensions: Collection[str]) -> str | None:
    """Return the CDI name of a GPU with libraries; None if they come otherwise, or none are requested."""
    wanted = grant.gpu is not None and grant.gpu.libraries and "gpu_cdi" in extensions
    return vendors.of(grant.device).cdi_name(grant.device) if wanted else None


def libraries(grants: Iterable[Grant], extensions: Collection[str]) -> dict[str, str]:
    """Return the instance keys for the libraries of GPUs' drivers that do not come by CDI."""
    wanted = [grant for grant in grants if grant.gpu and grant.gpu.libraries and not cdi_name(grant, extensions)]
    keys: dict[str, str] = {}
    for vendor in {vendors.of(grant.device) for grant in wanted}:
        mine = [grant for grant in wanted if grant.device.plugin == vendor.name]
        keys |= runtime(vendor, {name for grant in mine if grant.gpu for name in grant.gpu.libraries}, extensions,
                        f"GPU {mine[0].device.address} needs {vendor.label}'s libraries in the container")
    return keys


def prepared_libraries(spec: ContainerSpec, extensions: Collection[str]) -> dict[str, str]:
    """Return the keys for libraries in a container without a GPU. With CDI they come with the GPU."""
    if not spec.gpu_libraries or any(grant.gpu for grant in spec.grants) or "gpu_cdi" in extensions:
        return {}
    return {key: value for vendor in vendors.load() for key, value in runtime(
        vendor, spec.gpu_libraries, extensions,
        f"container {spec.name} is to have {vendor.label}'s libraries before it has a GPU").items()}


def later_gpu(spec: ContainerSpec, extensions: Collection[str]) -> str | None:
    """Describe how the libraries of a GPU come that the container may get later; None if it may get none."""
    if not spec.gpu_libraries or any(grant.gpu for grant in spec.grants):
        return None
    names = ",".join(sorted(spec.gpu_libraries))
    if "gpu_cdi" not in extensions:
        ways = filter(None, (vendor.lxd_libraries(spec.gpu_libraries) for vendor in vendors.load()))
        return (f"the libraries of GPUs' drivers ({names}) come in when it starts, by "
                f"{', '.join(key for way in ways for key in way.keys)}")
    if CDI_HOTPLUG in extensions:
        return f"the libraries of a GPU's driver ({names}) come with the GPU, by CDI"
    return (f"a GPU with its driver's libraries ({names}) can come only while it is off: this daemon has CDI, but not "
            f"{CDI_HOTPLUG}")


def runtime(vendor: type[Vendor], capabilities: Collection[str], extensions: Collection[str], need: str
            ) -> dict[str, str]:
    """Return the keys for libraries that do not come by CDI.

    :param need: who needs the libraries, for the message
    :raises UnsupportedOnHost: this daemon cannot bring them
    """
    ways = vendor.lxd_libraries(capabilities)
    if ways is None:
        return {}
    if ways.extension not in extensions:
        raise UnsupportedOnHost(f"{need}, but this daemon can bring them neither by CDI (extension gpu_cdi) nor by "
                                f"{', '.join(ways.keys)} (extension {ways.extension})")
    return dict(ways.keys)


def libraries_among(keys: Mapping[str, str]) -> dict[str, str]:
    """Return the keys of an instance's configuration for libraries at its start."""
    ways = filter(None, (vendor.lxd_libraries(GPU_CAPABILITIES) for vendor in vendors.load()))
    return {key: keys[key] for way in ways for key in way.keys if key in keys}
