# SPDX-License-Identifier: Apache-2.0
"""Run containers on LXD or Incus (LxdEngine), with the configuration of ``config`` and the requests of ``client``."""

import contextlib
import dataclasses
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from containerhost import errors
from containerhost.allocation.store import DIRECTORY
from containerhost.devices.grants import Grant
from containerhost.devices.model import Device
from containerhost.engines import contract
from containerhost.engines.contract import ContainerState, Executed, Metrics, PoolUsage, ServerInfo, Status
from containerhost.engines.fencing import Node, fenced, restore_all
from containerhost.engines.lxd import config, cores, held, operations, rescue_mount, restrictions, usage
from containerhost.engines.lxd.client import LxdClient, VersionedInstance
from containerhost.engines.lxd.device_nodes import DeviceNodes
from containerhost.engines.lxd.idmap import idmap
from containerhost.engines.lxd.serialized_create import SerializedCreate
from containerhost.engines.lxd.stale_devices import StaleDevices
from containerhost.engines.lxd.states import STATUSES, container_state, metrics
from containerhost.engines.network import rdma_netns
from containerhost.engines.spec import PROCESSES, BlockDevice, ContainerSpec, Part, grants_of
from containerhost.engines.usage import NOTHING
from containerhost.engines.verify import InterfaceMissing, require_as_granted, require_interface
from containerhost.inventory import memorynodes
from containerhost.linux.poll import retry
from containerhost.linux.process.processes import ProcReadTimeout, began, is_hosts, is_still
from containerhost.linux.storage.blocknodes import NodeMissing
from containerhost.linux.sysfs import Host
from containerhost.privileged import Privileged
from containerhost.rollback import Rollback

LOG = logging.getLogger(__name__)

ROOT = "root"  # name of the root disk among a container's devices
CONFLICT_TRIES = 5
# By the guest API of Incus and LXD a guest can report many times a second that it is ready or not. Each report changes
# the ETag, so most attempts may fail; random pauses keep the guest from making all of them fail.
CHANGED_TRIES = 40
FENCES = "fences"  # below the lock directory
BUSY_INTERVAL = 0.2  # s between polls of a container that another operation changes


class LxdEngine:
    """Manage the containers of one LXD or Incus project: create, start, stop, change, attach and verify them.

    :param restart_limit: seconds that a change of a container waits for a daemon that restarts meanwhile
    :ivar mates: returns the first processes of containers that share memory with one, which can send them open files
    """

    name = "lxd"

    def __init__(self, client: LxdClient, privileged: Privileged | None = None, locks: Path = DIRECTORY,
                 restart_limit: int = 0) -> None:
        self.client = client
        self._serialized_create = SerializedCreate(client, locks)
        self._privileged = privileged or Privileged()
        self._host = Host()
        self.nodes = DeviceNodes(self, self._privileged)
        self.stale_devices = StaleDevices(self, self._privileged, self._host, self.nodes)
        self._restart_limit = restart_limit
        self._pool_drivers: dict[str, str] = {}
        self._inits: dict[str, tuple[int, int]] = {}  # pid and start time
        self._fences = locks / FENCES
        self._fenced = threading.local()
        self.mates: Callable[[str], Collection[int]] = lambda name: ()

    # Queries of the whole host.

    def server(self) -> ServerInfo:
        environment = self.client.server()["environment"]
        return ServerInfo(
            name=environment.get("server", "lxd"),
            version=environment["server_version"],
            architectures=tuple(environment["architectures"]),
            kernel=environment["kernel_version"],
            hostname=environment["server_name"],
            certificate=environment.get("certificate_fingerprint") or "",
        )

    def pool(self, name: str) -> PoolUsage:
        space = self.client.pool_space(name)
        return PoolUsage(name, self._pool_driver(name), space.get("total", 0), space.get("used", 0))

    def _pool_driver(self, name: str) -> str:
        """Return the driver of a pool, cached because it never changes."""
        if name not in self._pool_drivers:
            self._pool_drivers[name] = self.client.pool(name)["driver"]
        return self._pool_drivers[name]

    def forbidden(self) -> str | None:
        project = self.client.settings.project or "default"
        keys = restrictions.forbidden(self.client.get("projects", project, asked=f"read project {project}")["config"])
        return restrictions.in_words(project, keys) if keys else None

    def containers(self) -> tuple[ContainerState, ...]:
        return tuple(container_state(instance) for instance in self.client.instances()
                     if instance.get("type", "container") == "container")

    def measured(self) -> tuple[tuple[ContainerState, Metrics], ...]:
        """Return all containers and their metrics: one request, values from the kernel.

        LXD 5.0.2 takes about six milliseconds for the state of each container, and is queried only if its control
        groups are not found. A container that ends meanwhile is left out."""
        found = []
        for state in self.containers():
            runs = state.status in (Status.RUNNING, Status.FROZEN)
            used = usage.read(self._host, self.client.settings.directory(state.name), state.status) if runs else None
            with contextlib.suppress(errors.EngineNotFound):
                found.append((state, used or (self.metrics(state.name) if runs else dataclasses.replace(
                    NOTHING, status=state.status))))
        return tuple(found)

    def held(self, devices: Iterable[Device]) -> Mapping[str, str]:
        instances = self.client.instances(all_projects="instance_all_projects" in self.client.extensions)
        return held.held(instances, devices, self.client.settings.project or "default")

    # Queries of one container.

    def container(self, name: str) -> ContainerState:
        instance, _ = self.client.instance(name)
        return container_state(instance)

    def exists(self, name: str) -> bool:
        try:
            self.client.instance(name)
        except errors.EngineNotFound:
            return False
        return True

    def metrics(self, name: str) -> Metrics:
        return metrics(self.client.state(name))

    def disks(self, name: str) -> Mapping[str, int]:
        """Ask for the state of the volume: for that of the container LXD starts programs in its namespaces."""
        if "storage_volume_state" not in self.client.extensions:
            return self.metrics(name).disks
        root = self.client.instance(name).instance["expanded_devices"].get(ROOT)
        try:
            used = self.client.volume_use(root["pool"], name) if root else 0
        except errors.EngineError as error:
            if "Not supported" not in str(error):
                raise
            used = 0  # LXD's value for a pool without quotas; Incus reports 0
        return {ROOT: used} if used else {}

    def console_log(self, name: str) -> bytes:
        try:
            return self.client.console_log(name)
        except errors.EngineError as error:
            # For a container that never started, LXD returns its error of opening the file.
            if not isinstance(error, errors.EngineNotFound) and "no such file" not in str(error):
                raise
            self.client.instance(name)
            return b""

    # These need websockets, whose import would delay short commands.

    def console(self, name: str) -> contract.Console:
        from containerhost.engines.lxd.console import Console  # noqa: PLC0415  (websockets)

        return Console(self.client, name)

    def execute(self, name: str, command: Sequence[str], stdin: bytes, *, timeout: int) -> Executed:
        with contextlib.closing(self.command(name, command)) as begun:
            return begun.finish(stdin, timeout)

    def command(self, name: str, command: Sequence[str]) -> contract.Command:
        from containerhost.engines.lxd.execute import Command  # noqa: PLC0415  (websockets)

        return Command(self.client, name, command)

    def events(self) -> contract.Events:
        from containerhost.engines.lxd.events import Events  # noqa: PLC0415  (websockets)

        return Events(self.client)

    # Life cycle.

    def create(self, spec: ContainerSpec) -> None:
        cores.require_usable(self._host, spec)
        body = config.instance(spec, self.client.extensions)
        later = config.later_gpu(spec, self.client.extensions)
        if later:
            LOG.info("Container %s, created for a GPU that is attached later: %s", spec.name, later)
        self.make(rescue_mount.body(self.client, body, spec.rescue_mount) if spec.rescue_mount else body)

    def make(self, body: Mapping[str, Any], timeout: int | None = None) -> None:
        """Create a container from the body of a request.

        :param timeout: seconds; None is the daemon's ``operation_timeout``
        """
        self._patiently(lambda: self._serialized_create.create(body, timeout))

    def root_ids(self, name: str) -> tuple[int, int]:
        ids = idmap(self.client, name)
        return ids.root if ids else (0, 0)

    def require_rescuable(self, name: str) -> None:
        rescue_mount.require_directory(self.client, self.client.instance(name)[0])

    def rename(self, name: str, new: str) -> None:
        try:
            self._patiently(lambda: self.client.rename_instance(name, new))
        except errors.OperationForgotten:
            if self.exists(name) or not self.exists(new):
                raise

    def start(self, name: str) -> None:
        self._free_names(self.client.instance(name).instance["devices"])
        try:
            self._act(name, "start")
        except errors.EngineError as error:
            if is_gone(error):
                raise
            if self._is(name, Status.RUNNING):
                return
            raise type(error)(self._reason_first(name, error)) from error

    def _free_names(self, devices: Mapping[str, Mapping[str, str]]) -> None:
        for device in devices.values():
            if "host_name" in device:
                self._privileged.free_name(device["host_name"])

    def stop(self, name: str, *, timeout: int, force: bool = False) -> None:
        state = self.container(name)
        if force:
            self._kill_stuck(name)
        if state.status is Status.STOPPED:
            return
        if state.status is Status.FROZEN and not force:
            # A frozen init cannot handle the request.
            self.unfreeze(name)
        try:
            self._act(name, "stop", force=force, timeout=timeout)
        except errors.EngineError as error:
            if is_gone(error):
                raise
            status = self.container(name).status
            if status is Status.STOPPED:
                return
            if not force and status is Status.RUNNING:
                raise errors.EngineTimeout(f"container {name} did not shut down within {timeout} s: {error}") from error
            raise

    def freeze(self, name: str) -> None:
        self._reach(name, Status.FROZEN, "freeze")

    def unfreeze(self, name: str) -> None:
        self._reach(name, Status.RUNNING, "unfreeze")

    def _reach(self, name: str, status: Status, action: str) -> None:
        if self._is(name, status):
            return
        try:
            self._act(name, action)
        except errors.OperationForgotten:
            if not self._is(name, status):
                raise

    def _act(self, name: str, action: str, **how: Any) -> None:
        self._patiently(lambda: self.client.set_state(name, action, **how))

    def _patiently(self, act: Callable[[], None]) -> None:
        """Repeat an action while LXD is busy.

        It reports a container as stopped while it still cleans up; until then it refuses the next action, and, after
        a rename, a new container with the old name."""
        retry(act, errors.EngineBusy, self.client.settings.operation_timeout, BUSY_INTERVAL)

    def delete(self, name: str) -> None:
        """Kill a running container, delete it, and wait until other callers' operations on it have ended."""
        operations.wait(self.client, name, operations.creates)
        timeout = self.client.settings.operation_timeout

        def delete() -> None:
            self.end_copies(name)
            self.stop(name, timeout=timeout, force=True)
            self.client.delete_instance(name)

        with contextlib.suppress(errors.EngineNotFound):
            retry(delete, errors.EngineError, timeout, BUSY_INTERVAL, lambda error: is_gone(error) or isinstance(
                error, errors.EngineTimeout | errors.EngineNotFound))

    def end_copies(self, name: str) -> None:
        """Stop the daemon's copying of the container into a snapshot, which then fails. The container stays."""
        killed = self._privileged.end_copies(self.client.settings.directory(name))
        if killed:
            LOG.warning("Killed %d processes of the daemon that copied container %s", killed, name)

    def apparent_size(self, name: str, timeout: float) -> int | None:
        """Return the bytes of the container's files, including the holes of sparse files.

        :returns: None if LXD does not mount them: for a stopped container on some pools
        :raises HostActionFailed: not done in time
        """
        pool = self.client.instance(name).instance["expanded_devices"].get("root", {}).get("pool")
        server, directory = self.nodes.place(name)
        return self._privileged.apparent_size(server, pool, directory, timeout) if pool else None

    def await_changes(self, name: str) -> None:
        operations.wait(self.client, name, operations.changes)

    # Devices.

    def attach(self, name: str, part: Part) -> None:
        """Attach a part, raising kernel limits for running processes if it needs that.

        :raises SpecError: the part needs an option that a running container cannot get
        :raises HostActionFailed: the kernel does not permit this host's helper to raise the limits
        """
        extensions = self.client.extensions
        fixed = config.start_config(grants_of([part]), extensions)
        devices = config.devices_of(part, extensions)
        self._free_names(devices)

        def change(instance: dict[str, Any], etag: str) -> None:
            missing = config.lacking(instance["config"], fixed)
            if missing and STATUSES.get(instance["status_code"]) is not Status.STOPPED:
                self._complete(name, devices, missing)
            self.stale_devices.retry_after_cleanup(
                name, instance, instance["devices"] | devices, lambda: self.client.patch_instance(
                    name, {"config": missing, "devices": devices}, etag), grants_of([part]))

        self.change(name, change)
        self.nodes.restore(name, devices)
        memorynodes.admit(self._host, self._privileged, lambda: self.pid(name), grants_of([part]))
        if any(grant.device.rdma for grant in grants_of([part])) and (pid := self.pid(name)):
            rdma_netns.enter(self._privileged, self._host, pid, grants_of([part]))

    def _complete(self, name: str, devices: Collection[str], missing: Mapping[str, str]) -> None:
        """Apply the keys that a running container's configuration requires, as far as possible."""
        unalterable = {key: value for key, value in missing.items() if not key.startswith(config.KERNEL)}
        if unalterable:
            raise errors.SpecError(
                f"{', '.join(devices)} needs {', '.join(f'{key}={value}' for key, value in unalterable.items())}, "
                f"which container {name} can only get while it is stopped")
        pid = self.pid(name)
        if pid:
            self._privileged.raise_limits(pid, config.of_kernel_limits(missing))

    def detach(self, name: str, part: Part, remaining: Sequence[Part] = ()) -> None:
        extensions = self.client.extensions
        go = config.devices_of(part, extensions).keys() - config.devices_of_all(remaining, extensions).keys()

        def change(instance: dict[str, Any], etag: str) -> None:
            kept = {key: value for key, value in instance["devices"].items() if key not in go}
            if kept == instance["devices"]:
                if grants := grants_of([part]):
                    self.stale_devices.clear(name, instance, grants)
                return
            if isinstance(part, Grant):
                self._require_interfaces(name, [instance["devices"][key] for key in go & instance["devices"].keys()])
            with self.fenced(name, part) if isinstance(part, BlockDevice) else contextlib.nullcontext():
                self.stale_devices.retry_after_cleanup(name, instance, kept, lambda: self.client.replace_instance(
                    name, instance | {"devices": kept}, etag))

        with memorynodes.withdrawn(self._host, self._privileged, lambda: self.pid(name), grants_of([part]),
                                   grants_of(remaining)):
            try:
                self.change(name, change)
            except (NodeMissing, InterfaceMissing):
                # LXD may be removing the device for a caller that was killed.
                self.await_changes(name)
                if not self.client.instance(name).instance["devices"].keys().isdisjoint(go):
                    raise
                self.change(name, change)

    def _require_interfaces(self, name: str, devices: Sequence[Mapping[str, str]]) -> None:
        pid = self.pid(name)
        for device in devices:
            if pid is not None and device.get("nictype") == "physical":
                require_interface(device["name"], device["parent"], self._privileged.inside(pid), self._host)

    @contextlib.contextmanager
    def fenced(self, name: str, disk: BlockDevice) -> Iterator[None]:
        """Fence a disk within the block. May be nested, to detach the disk in the block."""
        pid, mine = self.pid(name), self._fenced.__dict__.setdefault("paths", set())
        if pid is None or (pid, disk.path) in mine:
            yield
            return
        mine.add((pid, disk.path))
        try:
            (device,) = config.devices_of(disk, self.client.extensions)
            server, directory = self.nodes.place(name)
            with fenced(self._privileged, self._fences, server, Node(name, directory, device), pid, disk,
                        int(config.BLOCK_MODE, 8), self.mates(name)):
                yield
        finally:
            mine.discard((pid, disk.path))

    def restore_fenced(self) -> tuple[str, ...]:
        def await_changes(name: str) -> int:
            self.await_changes(name)
            return self.nodes.place(name)[0]

        return restore_all(self._privileged, self._fences, await_changes)

    def update_devices(self, name: str, parts: Sequence[Part]) -> None:
        """Replace the parts of a stopped container with exactly these, by their current names.

        After a restart of the host, interfaces and nodes may have other names than at its creation. A container of a
        release without process limits, or with io_uring, gets the default."""
        extensions = self.client.extensions
        wanted = config.devices_of_all(parts, extensions)
        fixed, groups = config.start_config(grants_of(parts), extensions), config.groups(extensions)

        def change(instance: dict[str, Any], etag: str) -> None:
            kept = {key: device for key, device in instance["devices"].items() if not config.is_of_part(key)}
            limited = {"limits.processes": str(PROCESSES), config.DENIED_CALLS: config.IO_URING} | (
                {config.RAW: groups} if groups else {})
            changed = {"devices": kept | wanted, "config": limited | instance["config"] | fixed}
            if instance | changed != instance:
                self.client.replace_instance(name, instance | changed, etag)

        self._patiently(lambda: self.change(name, change))

    def reconfigure(self, name: str, spec: ContainerSpec) -> None:
        cores.require_usable(self._host, spec)
        extensions = self.client.extensions
        wanted = config.instance_config(spec, extensions)
        devices = {"root": config.root_disk(spec.root)} | config.devices_of_all(spec.parts, extensions)

        def change(instance: dict[str, Any], etag: str) -> None:
            own = {key: value for key, value in instance["config"].items() if config.is_engines_own(key)}
            kept = {key: device for key, device in instance["devices"].items() if not config.is_of_part(key)}
            self.client.replace_instance(name, instance | {"config": own | wanted, "devices": kept | devices}, etag)

        self._patiently(lambda: self.change(name, change))
        self._apply_cores(name, spec, wanted)

    def relabel(self, name: str, labels: Mapping[str, str | None]) -> None:
        wanted = {f"user.{key}": value for key, value in labels.items()}

        def change(instance: dict[str, Any], etag: str) -> None:
            merged = instance["config"] | wanted
            config = {key: value for key, value in merged.items() if value is not None}
            if config != instance["config"]:
                self.client.replace_instance(name, instance | {"config": config}, etag)

        self.change(name, change)

    def set_limits(self, name: str, spec: ContainerSpec) -> None:
        cores.require_usable(self._host, spec)
        wanted = config.limits(spec, self.client.extensions)
        root = config.root_disk(spec.root)

        former: dict[str, Any] = {}

        def change(instance: dict[str, Any], etag: str) -> None:
            former.update(former or instance)
            self.client.replace_instance(name, config.with_limits(instance, wanted, root), etag)

        def restore(instance: dict[str, Any], etag: str) -> None:
            if former:
                limits = {key: value for key, value in former["config"].items() if config.is_limit(key)}
                self.client.replace_instance(name, config.with_limits(instance, limits, former["devices"]["root"]),
                                             etag)

        with Rollback(f"limits of container {name}") as undo:
            # Registered before the change: LXD records limits even if it fails to apply them.
            undo.on_error("its former limits", self.change, name, restore)
            self.change(name, change)
            self._apply_cores(name, spec, wanted)

    def _apply_cores(self, name: str, spec: ContainerSpec, wanted: Mapping[str, str]) -> None:
        pid = self.pid(name)
        cores.wait_applied(self.client, self._privileged, self.change, self._host, name, pid,
                           wanted.get(cores.LIMIT))
        cores.bind_memory(self._privileged, self._host, pid, spec.cpu)

    def change(self, name: str, change: Callable[[dict[str, Any], str], None], current: VersionedInstance
               | None = None) -> None:
        """Read, change and write back; retry after a concurrent write, or a restart of the daemon.

        :param change: called with the container as LXD describes it and its ETag; skips changes that are already
            made
        :param current: state that the caller has just read
        """
        conflicts, changed, limit = 0, 0, None
        while True:
            try:
                read = current or self.client.instance(name)
                if changed:
                    time.sleep(random.uniform(0, BUSY_INTERVAL))  # noqa: S311  (no secret)
                return change(*read)
            except errors.EngineChanged:
                changed += 1
                if changed == CHANGED_TRIES:
                    raise
            except (errors.EngineConflict, errors.OperationForgotten):
                conflicts += 1
                if conflicts == CONFLICT_TRIES:
                    raise
            except errors.EngineUnavailable:
                limit = limit or time.monotonic() + self._restart_limit
                if time.monotonic() >= limit:
                    raise
            current = None
            time.sleep(BUSY_INTERVAL)

    def verify(self, name: str, grants: Sequence[Grant]) -> None:
        """Check what the running container sees from the host, through its first process; runs no program of it."""
        require_as_granted(name, self.pid(name), grants, self._privileged, self._host)

    # Helpers.

    def pid(self, name: str) -> int | None:
        """Return the container's first process, cached while it runs; None if it is not running.

        LXD runs a program in the container to determine it, so it is asked only if the control groups do not tell."""
        known = self._inits.get(name)
        if known is not None and is_still(*known):
            return known[0]
        self._inits.pop(name, None)
        settings = self.client.settings
        found = usage.first_process(self._host, settings.directory(name), os.path.dirname(settings.shown()))
        if found is None or is_hosts(found):  # before and after its life, the container's monitor runs hooks
            found = metrics(self.client.state(name)).pid
        when = None
        if found is not None:
            with contextlib.suppress(ProcReadTimeout):
                when = began(found)
        if found is not None and when is not None:  # LXD may still report a process that has just ended
            self._inits[name] = found, when
        return found

    def _kill_stuck(self, name: str) -> None:
        """Kill the daemon's helpers that wait for the tenant, and the container if it may have frozen processes."""
        pid = self.pid(name)
        killed = self._privileged.end_helpers(pid or 0)
        if killed:
            LOG.warning("Killed %d processes of the daemon that waited for container %s", killed, name)
        if pid:
            self._privileged.kill_frozen(pid)

    def _is(self, name: str, status: Status) -> bool:
        return self.container(name).status is status

    def _reason_first(self, name: str, error: errors.EngineError) -> str:
        """Return the error lines of the container's own log, followed by ``error``.

        LXD itself only reports that forkstart failed, and clouds truncate long messages."""
        try:
            lines = self.client.log(name, "lxc.log").decode("utf-8", "replace").splitlines()
        except errors.EngineError as unreadable:
            return f"{error} (its log cannot be read: {unreadable})"
        wrong = [line.partition(" ERROR ")[2].strip() for line in lines if " ERROR " in line]
        return f"container {name} does not start: {' / '.join(wrong[:3])} ({error})" if wrong else str(error)


def is_gone(error: errors.EngineError) -> bool:
    """Return whether the daemon does not respond."""
    return isinstance(error, errors.EngineUnavailable) and not isinstance(error, errors.OperationForgotten)


_: type[contract.Engine] = LxdEngine
