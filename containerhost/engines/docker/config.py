# SPDX-License-Identifier: Apache-2.0
"""Translate ContainerSpec and Grant to Docker's configuration. Pure.

Keys and values: Docker's Engine API, ``POST /containers/create``. Nothing here widens what Docker gives a container:
never privileged, its seccomp and AppArmor profiles, no capability but IPC_LOCK, and that only with RDMA.
"""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from containerhost.devices.grants import Grant
from containerhost.engines.capabilities import Size
from containerhost.engines.docker.record import Netdev, Node, Record, union
from containerhost.engines.spec import (
    CloudInit,
    ContainerSpec,
    Cpu,
    Health,
    IoLimit,
    Memory,
    Mount,
    Nic,
    Part,
    Program,
    grants_of,
)
from containerhost.errors import SpecError
from containerhost.linux import guest_directory
from containerhost.linux.idlist import id_text

RUNTIME = "containerhost"

# Directory with the resource documents: a tmpfs, so that no commit or image contains it.
GUEST_DIRECTORY = f"/{'/'.join(guest_directory.DIRECTORY)}"
GUEST_OPTIONS = "size=1m,mode=0755"

# One label for all marks of the driver: an image could bring single ones.
LABEL = "containerhost"

PERIOD = 100_000  # µs, the kernel's default
SECOND = 1_000_000_000  # ns
# Docker runs each check outside the container's limits, at a tenth of a second of the host's CPU time.
HEALTH_INTERVAL = 5 * SECOND
SHARES = 1024  # CPU weight; all containers have the same
LOG = {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "2"}}


def container(spec: ContainerSpec, disk: str | None, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the body of ``POST /containers/create``.

    :param disk: the block device that holds the root file systems; None if they are not on one disk
    :param more: further entries of the host configuration that an administrator allows; lists are extended
    :raises SpecError: Docker cannot express a part of ``spec``
    """
    refuse(spec)
    environment = dict(spec.environment)
    for grant in spec.grants:
        environment |= grant.environment
    return {
        "Image": spec.image,
        "Hostname": spec.program.hostname or spec.name,
        "Env": [f"{key}={value}" for key, value in sorted(environment.items())],
        "Labels": {LABEL: json.dumps(dict(spec.labels), sort_keys=True)},
        "HostConfig": with_more(host_config(spec, disk), more or {}),
        **program(spec.program),
    }


def with_more(config: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    return dict(config) | {key: [*config.get(key, ()), *value] if isinstance(value, list) else value
                           for key, value in more.items()}


def program(wanted: Program) -> dict[str, Any]:
    """Return the entrypoint and command; None keeps the image's.

    With another entrypoint the image's command is not used, because it belongs to the image's entrypoint."""
    config: dict[str, Any] = {}
    if wanted.entrypoint is not None:
        config |= {"Entrypoint": list(wanted.entrypoint), "Cmd": []}
    if wanted.command is not None:
        config["Cmd"] = list(wanted.command)
    if wanted.directory is not None:
        config["WorkingDir"] = wanted.directory
    if wanted.user is not None:
        config["User"] = wanted.user
    if wanted.health is not None:
        config["Healthcheck"] = health(wanted.health)
    return config


def health(wanted: Health) -> dict[str, Any]:
    """Return the health check; an empty command disables the image's own."""
    if not wanted.command:
        return {"Test": ["NONE"]}
    times = {"Interval": wanted.interval, "Timeout": wanted.timeout, "StartPeriod": wanted.start}
    return {"Test": ["CMD", *wanted.command], "Retries": wanted.retries or 0,
            **{key: (seconds or 0) * SECOND for key, seconds in times.items()}}


def limited_health(wanted: Mapping[str, Any], of_image: Mapping[str, Any]) -> dict[str, Any]:
    """Return the health check with intervals of at least HEALTH_INTERVAL; missing or zero values are the image's."""
    both = dict(of_image) | {key: value for key, value in wanted.items() if value}
    hurried = {key: HEALTH_INTERVAL for key in ("Interval", "StartInterval") if 0 < both.get(key, 0) < HEALTH_INTERVAL}
    return dict(wanted) | hurried if both.get("Test") != ["NONE"] else dict(wanted)


def host_config(spec: ContainerSpec, disk: str | None) -> dict[str, Any]:
    config = {
        "Runtime": RUNTIME,
        "NetworkMode": "none",
        "IpcMode": "private",
        "Privileged": False,
        "RestartPolicy": {"Name": "no"},
        "LogConfig": LOG,
        "PidsLimit": spec.processes,
        "ReadonlyRootfs": spec.security.read_only,
        **memory(spec.memory),
        "Mounts": [mount(item) for item in spec.mounts],
        **cpu(spec.cpu),
        **io_limits(spec.root.io, disk),
        "Tmpfs": {GUEST_DIRECTORY: GUEST_OPTIONS},
        **start_config(spec.grants, spec.limits),
    }
    if spec.root.size is not None:
        config["StorageOpt"] = {"size": str(spec.root.size)}
    return config


def refuse(spec: ContainerSpec) -> None:
    """Refuse what Docker does not support.

    :raises SpecError: Docker does not support a part of it
    """
    for asked, what in (
        (spec.security.privileged, "privileged"),
        (spec.security.nesting, "able to hold containers of its own"),
        (spec.rescue_mount is not None, "given another container's root disk"),
        (spec.cloud_init != CloudInit(), "given documents for cloud-init"),
        (any(spec.memory.hugepages.values()), "given huge pages"),
    ):
        if asked:
            raise SpecError(f"container {spec.name}: a container on Docker cannot be {what}")
    record_of(spec.parts)
    names = [netdev.name for part in spec.parts for netdev in part_record(part).netdevs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SpecError(f"container {spec.name}: more than one interface would be named {', '.join(twice)}")


def memory(wanted: Memory) -> dict[str, Any]:
    """Return the memory limits, without swap."""
    return {"Memory": wanted.size, "MemorySwap": wanted.size}


def update(spec: ContainerSpec, cpus: str, nodes: str) -> dict[str, Any]:
    """Return the body of ``POST /containers/ID/update`` that replaces all limits.

    Docker ignores values that are missing, 0 or empty, so an absent limit is set to all that the host has.

    :param cpus, nodes: all of the host's, as the kernel lists them
    """
    everything = {"CpuPeriod": PERIOD, "CpuQuota": -1, "CpusetCpus": cpus, "CpusetMems": nodes,
                  "CpuShares": SHARES}
    return everything | cpu(spec.cpu) | memory(spec.memory)


def live(size: Size) -> dict[str, Any]:
    """Return the body of ``POST /containers/ID/update`` for a running container's size; its other limits stay."""
    return {"CpusetCpus": id_text(size.cores), **memory(Memory(size.memory))}


def cpu(wanted: Cpu) -> dict[str, Any]:
    """Return the CPU limits: ``cores`` pins; a share, or a mere count of CPUs, is a hard limit of CPU time."""
    config: dict[str, Any] = {}
    share = wanted.share if wanted.share is not None else None if wanted.cores else wanted.count * 100
    if share is not None:
        config |= {"CpuPeriod": PERIOD, "CpuQuota": share * PERIOD // 100}
    if wanted.cores:
        config["CpusetCpus"] = id_text(wanted.cores)
    if wanted.nodes or wanted.memory_nodes:
        config["CpusetMems"] = id_text(wanted.nodes or wanted.memory_nodes)
    if wanted.priority is not None:
        config["CpuShares"] = SHARES - (10 - wanted.priority)
    return config


def io_limits(wanted: IoLimit, disk: str | None) -> dict[str, Any]:
    limits = {"BlkioDeviceReadBps": wanted.read_bytes, "BlkioDeviceWriteBps": wanted.write_bytes,
              "BlkioDeviceReadIOps": wanted.read_iops, "BlkioDeviceWriteIOps": wanted.write_iops}
    asked = {key: rate for key, rate in limits.items() if rate is not None}
    if asked and disk is None:
        raise SpecError("a limit of the root disk's rate is requested, but Docker's root file systems are on no disk "
                        "of the host, or on several: put Docker's data-root on one disk, or request no limit")
    return {key: [{"Path": disk, "Rate": rate}] for key, rate in asked.items()}


def mount(wanted: Mount) -> dict[str, Any]:
    follows = {"BindOptions": {"Propagation": "rslave"}} if wanted.follows else {}
    return {"Type": "bind", "Source": wanted.source, "Target": wanted.target, "ReadOnly": wanted.read_only, **follows}


#: What LXCFS tells each container of its own in place of the host's, and runc lets be mounted there. Not ``present``
#: and ``possible``: programs size arrays by them that they index with the number of the CPU they run on.
LXCFS = ("proc/cpuinfo", "proc/diskstats", "proc/loadavg", "proc/meminfo", "proc/stat", "proc/swaps", "proc/uptime",
         "sys/devices/system/cpu/online")


def own_view(lxcfs: str) -> tuple[Mount, ...]:
    """Return the mounts that make a container's /proc and /sys show its own CPUs and memory.

    :param lxcfs: where LXCFS is mounted on the host; empty to use none
    """
    return tuple(Mount(f"lxcfs-{file.rpartition('/')[2]}", f"{lxcfs}/{file}", f"/{file}") for file in LXCFS if lxcfs)


# What a container must be started with.


def start_config(grants: Sequence[Grant], limits: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the options that the container's grants need at its creation, and that cannot be added later."""
    most: dict[str, int] = {}
    for asked in (limits or {}, *(grant.limits for grant in grants)):
        for name, text in asked.items():
            most[name] = max(most.get(name, 0), limit(text), key=limit_order)
    return {"Ulimits": [{"Name": name, "Soft": size, "Hard": size} for name, size in sorted(most.items())],
            "CapAdd": ["IPC_LOCK"] if any(has_rdma(grant) for grant in grants) else []}


LIMITS = {"memlock": "locked memory"}  # description for messages; in bytes


def lacking(made: Mapping[str, Any], grants: Sequence[Grant]) -> tuple[str, ...]:
    """Describe what ``grants`` need but a container lacks."""
    wanted = start_config(grants)
    have = {item["Name"]: item["Hard"] for item in made.get("Ulimits") or ()}
    return (*(f"{LIMITS.get(item['Name'], item['Name'])} ({'unlimited' if item['Hard'] == -1 else item['Hard']})"
              for item in wanted["Ulimits"]
              if limit_order(have.get(item["Name"], 0)) < limit_order(item["Hard"])),
            # Docker accepts both forms, and reports the one with a prefix.
            *(f"capability {name}" for name in wanted["CapAdd"]
              if name not in {held.removeprefix("CAP_") for held in made.get("CapAdd") or ()}))


def has_rdma(grant: Grant) -> bool:
    return any(node.path.startswith("/dev/infiniband/") for node in grant.nodes)


def limit(text: str) -> int:
    return -1 if text == "unlimited" else int(text)


def limit_order(size: int) -> float:
    return float("inf") if size == -1 else size


# Parts.


def record_of(parts: Iterable[Part]) -> Record:
    return union(map(part_record, parts))


def part_record(part: Part) -> Record:
    """Return the record of a part, the same at start and when it is attached to a running container.

    :raises SpecError: Docker does not support a part of this kind
    """
    match part:
        case Grant():
            netdevs = {Netdev(netdev.host_name, netdev.name, netdev.setup) for netdev in part.netdevs}
            return Record(frozenset({part.device.id}),
                          frozenset(Node(node.path, node.major, node.minor) for node in part.nodes), frozenset(netdevs),
                          part.gpu.libraries if part.gpu else frozenset())
        case Nic(mac=None, mtu=None):
            return Record(netdevs=frozenset({Netdev(part.parent, part.name, part.setup)}))
        case Nic():
            raise SpecError(f"interface {part.name}: a container on Docker gets an interface as it is; set its MAC and "
                            "MTU on the host")
        case _:
            kind = " ".join(re.findall("[A-Z][a-z]*", type(part).__name__)).lower()
            raise SpecError(f"{kind} {part.name}: a container on Docker cannot be given one")


def going(part: Part, remaining: Sequence[Part], record: Record) -> Record:
    """Return what is removed with ``part``: everything it brought that the remaining parts do not share.

    A device that fell off the bus no longer lists its nodes, and one that was reset may have others. So nodes that
    no part brings now are removed too, unless they may belong to a broken device that stays."""
    stay = record_of(remaining)
    gone = part_record(part) - stay
    sound = all(grant.device.sound for grant in grants_of(remaining))
    if isinstance(part, Grant) and (sound or not part.device.sound):
        return dataclasses.replace(gone, nodes=gone.nodes | (record.nodes - stay.nodes))
    return gone
