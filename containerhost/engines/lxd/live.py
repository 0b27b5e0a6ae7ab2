# SPDX-License-Identifier: Apache-2.0
"""Change CPUs, memory, root disk and devices of a container while its processes keep running.

LXD applies a configuration written to a running container immediately, but does not fully undo one that it fails to
apply: its database then differs from the container. So a change is written in small steps: memory first, which is
most likely to be refused, and devices one by one. Writing the former configuration undoes the completed steps.

A caller reads the container once (:meth:`Live.read`); the steps are computed from that state, which the first step
changes.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

from containerhost import errors
from containerhost.devices.grants import Grant
from containerhost.engines import memoryuse
from containerhost.engines.capabilities import Size
from containerhost.engines.contract import Status
from containerhost.engines.lxd import config, cores
from containerhost.engines.lxd.client import LxdClient, VersionedInstance
from containerhost.engines.lxd.engine import LxdEngine
from containerhost.engines.lxd.states import STATUSES
from containerhost.engines.spec import ContainerSpec
from containerhost.linux.idlist import id_list
from containerhost.linux.sysfs import Host
from containerhost.privileged import Privileged

MEMORY = ("limits.memory", "limits.hugepages.")
LIMITS = ("limits.cpu", "limits.disk.", "limits.processes", config.OWN_CORES, config.RAW)
#: What LXD only writes down: limits and environment for what is started from now on, and marks, which the guest reads.
NOTED = (config.KERNEL, "user.", "environment.")
#: Keys that may change while a container runs.
LIVE = (*MEMORY, *LIMITS, *NOTED)
#: Pools that hold a root disk to its size by a quota, which may shrink under a mounted file system.
QUOTA_POOLS = frozenset({"btrfs", "dir", "zfs"})

Instance = dict[str, Any]
Device = dict[str, str]
Step = Callable[[Instance], Instance]


@dataclasses.dataclass(frozen=True)
class Target:
    """Describe the target state of a running container."""

    config: Mapping[str, str]
    root: Device
    granted: Mapping[str, Device]


class Live:
    """Change the cores, memory, root disk, labels and devices of running LXD containers."""

    def __init__(self, engine: LxdEngine, privileged: Privileged, host: Host | None = None) -> None:
        self._engine = engine
        self._client: LxdClient = engine.client
        self._privileged = privileged
        self._host = host or Host()

    def read(self, name: str) -> VersionedInstance:
        return self._client.instance(name)

    def obstacles(self, current: VersionedInstance, spec: ContainerSpec) -> tuple[str, ...]:
        cores.require_usable(self._host, spec)
        instance, extensions = current.instance, self._client.extensions
        found = obstacles(instance["config"], config.instance_config(spec, extensions))
        found += device_obstacles(instance["devices"], config.devices_of_all(spec.grants, extensions), extensions)
        before, after = (int(disk.get("size") or 0) for disk in (instance["devices"]["root"],
                                                                 config.root_disk(spec.root)))
        pool = spec.root.pool
        if 0 < after < before and (driver := self._engine.pool(pool).driver) not in QUOTA_POOLS:
            found += (f"a root disk in pool {pool} ({driver}) shrinks only while it is not mounted",)
        return found

    def await_changes(self, name: str) -> None:
        self._engine.await_changes(name)

    def differs(self, current: VersionedInstance, spec: ContainerSpec) -> bool:
        wanted = self._target(spec)
        fixed = obstacles(current.instance["config"], config.instance_config(spec, self._client.extensions))
        return bool(fixed) or bool(steps(current.instance, wanted, kept=wanted.granted))

    def memory_in_use(self, name: str) -> int:
        metrics = self._engine.metrics(name)
        found = memoryuse.needed(self._host, metrics.pid) if metrics.pid else 0
        return metrics.memory if found is None else found

    def adapt(self, current: VersionedInstance, spec: ContainerSpec) -> None:
        cores.require_usable(self._host, spec)
        wanted = self._target(spec)
        kernel = config.of_kernel_limits(wanted.config)
        pid = self._engine.pid(spec.name)
        if kernel and pid:
            self._privileged.raise_limits(pid, kernel)
        self._write(spec.name, steps(current.instance, wanted, kept=wanted.granted), current)
        self._engine.nodes.restore(spec.name, wanted.granted)
        if limits(current.instance, wanted) != current.instance:
            cores.wait_applied(self._client, self._privileged, self._engine.change, self._host, spec.name, pid,
                               wanted.config.get(cores.LIMIT))
            cores.bind_memory(self._privileged, self._host, pid, spec.cpu)

    def resize(self, current: VersionedInstance, size: Size, labels: Mapping[str, str]) -> None:
        """Set the running container's cores, memory and labels in one request.

        LXD refuses it if the container has changed meanwhile."""
        instance, etag = current
        name, online = instance["name"], id_list(self._host.text("/sys/devices/system/cpu/online"))
        require_running(instance)
        if not size.cores <= online:
            raise errors.UnsupportedOnHost(f"container {name} must run on cores {config.core_list(size.cores)}, of "
                                           f"which {config.core_list(size.cores - online)} are offline")
        keys = {cores.LIMIT: config.core_list(size.cores), "limits.memory": str(size.memory)} | user_keys(labels)
        self._client.replace_instance(name, instance | {"config": instance["config"] | keys}, etag)
        cores.wait_applied(self._client, self._privileged, self._engine.change, self._host, name,
                           self._engine.pid(name), keys[cores.LIMIT])

    def relabel(self, current: VersionedInstance, labels: Mapping[str, str]) -> None:
        instance, etag = current
        require_running(instance)
        self._client.replace_instance(instance["name"], instance | {"config": instance["config"] | user_keys(labels)},
                                      etag)

    def hindrances(self, current: VersionedInstance, grants: Collection[Grant]) -> tuple[str, ...]:
        extensions = self._client.extensions
        return device_obstacles(current.instance["devices"], config.devices_of_all(grants, extensions), extensions)

    def replace_devices(self, current: VersionedInstance, spec: ContainerSpec) -> None:
        """Detach all grants of the running container and attach those of ``spec``.

        For a container whose devices differ from LXD's database."""
        self._engine.stale_devices.clear(spec.name, current.instance)
        wanted = self._target(spec)
        self._write(spec.name, steps(current.instance, wanted, kept={}), current)
        self._engine.nodes.restore(spec.name, wanted.granted)

    def _target(self, spec: ContainerSpec) -> Target:
        extensions = self._client.extensions
        return Target(live_keys(config.instance_config(spec, extensions)), config.root_disk(spec.root),
                      config.devices_of_all(spec.grants, extensions))

    def _write(self, name: str, changes: Collection[Step], current: VersionedInstance | None) -> None:
        for step in changes:
            self._engine.change(name, functools.partial(self._do, name, step), current)
            current = None

    def _do(self, name: str, step: Step, instance: Instance, etag: str) -> None:
        changed = step(instance)
        if changed != instance:
            self._engine.stale_devices.retry_after_cleanup(
                name, instance, changed["devices"], lambda: self._client.replace_instance(name, changed, etag))


def require_running(instance: Instance) -> None:
    """Refuse a container that no longer runs.

    :raises EngineConflict: it is not running
    """
    if STATUSES.get(instance["status_code"]) is not Status.RUNNING:
        raise errors.EngineConflict(f"container {instance['name']} does not run, so it is not changed")


# Pure: from the container's current state to the new configuration.

def user_keys(labels: Mapping[str, str]) -> dict[str, str]:
    return {f"user.{key}": value for key, value in labels.items()}


def steps(present: Instance, wanted: Target, kept: Mapping[str, Device]) -> list[Step]:
    """Return the changes to write one after another; keys that LXD only stores come with the last one.

    Removals precede additions: two interfaces may have the same name in turn.

    :param kept: granted devices that need not be reattached
    """
    devices = present["devices"]
    found = [step for step in (functools.partial(memory, wanted=wanted), functools.partial(limits, wanted=wanted))
             if step(present) != present]
    found += [functools.partial(without, key=key) for key, device in devices.items()
              if config.is_of_grant(key) and kept.get(key) != device]
    found += [functools.partial(including, key=key, device=device) for key, device in wanted.granted.items()
              if not device == kept.get(key) == devices.get(key)]
    if found:
        last = found.pop()
        return [*found, lambda instance: noted(last(instance), wanted)]
    return [functools.partial(noted, wanted=wanted)] if noted(present, wanted) != present else []


def live_keys(keys: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in keys.items() if key.startswith(LIVE)}


def memory(instance: Instance, wanted: Target) -> Instance:
    return _with_keys(instance, wanted, MEMORY)


def limits(instance: Instance, wanted: Target) -> Instance:
    """Return the instance with its new limits, the root disk's included."""
    return _with_keys(instance, wanted, LIMITS) | {"devices": instance["devices"] | {"root": wanted.root}}


def noted(instance: Instance, wanted: Target) -> Instance:
    return _with_keys(instance, wanted, NOTED)


def _with_keys(instance: Instance, wanted: Target, prefixes: tuple[str, ...]) -> Instance:
    """Replace the keys with a prefix by the wanted ones; others stay."""
    others = {key: value for key, value in instance["config"].items() if not key.startswith(prefixes)}
    return instance | {"config": others | {key: value for key, value in wanted.config.items()
                                           if key.startswith(prefixes)}}


def including(instance: Instance, key: str, device: Device) -> Instance:
    return instance | {"devices": instance["devices"] | {key: device}}


def without(instance: Instance, key: str) -> Instance:
    return instance | {"devices": {other: device for other, device in instance["devices"].items() if other != key}}


def obstacles(present: Mapping[str, str], wanted: Mapping[str, str]) -> tuple[str, ...]:
    """Describe the differences of the configuration that need a restart."""
    # A container that an earlier release started denies no system calls until its next start.
    differing = [key for key in wanted if key.startswith("security.") and key != config.DENIED_CALLS
                 and present.get(key) != wanted[key]]
    found = [f"{key}={wanted[key]} takes effect when it starts" for key in sorted(differing)]
    # These keys do not change while the container runs, so they show which libraries it has.
    libraries = config.lacking(present, config.libraries_among(wanted))
    if libraries:
        found.append(f"the GPU driver's libraries ({', '.join(libraries.values())}) come in when it starts; a flavor "
                     "with lxd:gpu_capabilities brings them before there is a GPU")
    return tuple(found)


def device_obstacles(present: Mapping[str, Device], wanted: Mapping[str, Device],
                     extensions: Collection[str]) -> tuple[str, ...]:
    """Describe the differences of the devices that need a restart."""
    coming = [device for key, device in wanted.items() if present.get(key) != device]
    if config.CDI_HOTPLUG in extensions or not any(
            device["type"] == "gpu" and "=" in device.get("id", "") for device in coming):  # a CDI name
        return ()
    return (f"this daemon brings a GPU with its driver's libraries when it starts (no {config.CDI_HOTPLUG})",)
