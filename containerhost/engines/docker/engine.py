# SPDX-License-Identifier: Apache-2.0
"""Run containers on Docker (DockerEngine), with the configuration of ``config`` and the requests of ``client``.

Of :class:`containerhost.engines.contract.Engine` it has :class:`containerhost.engines.contract.Containers`: no
pools, pool disks, block devices, live consoles and events.
"""

import contextlib
import dataclasses
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from containerhost import errors
from containerhost.devices.grants import Grant
from containerhost.devices.model import Device
from containerhost.engines import contract
from containerhost.engines.contract import ContainerState, Executed, Metrics, ServerInfo, Status
from containerhost.engines.docker import config, held, recordfiles, startup, usage
from containerhost.engines.docker.client import DockerClient
from containerhost.engines.docker.execute import Command
from containerhost.engines.docker.freezer import Freezer
from containerhost.engines.docker.privileged import DockerPrivileged
from containerhost.engines.docker.record import DIRECTORY, Record, Records
from containerhost.engines.docker.states import bare_name, container_state, status_of, summary_state
from containerhost.engines.spec import ContainerSpec, IoLimit, Part, grants_of
from containerhost.engines.usage import NOTHING
from containerhost.engines.verify import require_as_granted, require_interface
from containerhost.inventory import memorynodes
from containerhost.linux.lock import FileLock
from containerhost.linux.poll import retry
from containerhost.linux.process.processes import runs
from containerhost.linux.storage import blockdisk
from containerhost.linux.sysfs import Host
from containerhost.rollback import Rollback

LOG = logging.getLogger(__name__)

LINES = 1000  # bytes of a container's output
BUSY_INTERVAL = 0.2  # s between polls of a container that another caller removes
LOCK_TIMEOUT = 60.0  # s; a holder changes a few nodes or interfaces


class DockerEngine:
    """Manage containers on Docker, and record what Docker cannot change later, such as devices and labels.

    :param records: the directory that the daemon's runtime uses, too
    """

    name = "docker"

    def __init__(self, client: DockerClient, privileged: DockerPrivileged | None = None, records: Path = DIRECTORY
                 ) -> None:
        self.client = client
        self._privileged = privileged or DockerPrivileged()
        self._records = Records(records)
        self._host = Host()
        self._freezer = Freezer(client, self._privileged, self._host)

    # Queries of the whole host.

    def server(self) -> ServerInfo:
        info = self.client.info()
        return ServerInfo(name="docker", version=info["ServerVersion"], architectures=(info["Architecture"],),
                          kernel=info["KernelVersion"], hostname=info["Name"])

    def containers(self) -> tuple[ContainerState, ...]:
        return tuple(map(self._listed, self.client.containers()))

    def _listed(self, summary: Mapping[str, Any]) -> ContainerState:
        """Return the state of an entry of Docker's list, without interfaces and cores if its record is unreadable."""
        try:
            record = self._record_or_none(summary["Id"])
        except errors.EngineError as error:
            LOG.error("Interfaces and cores of container %s are unknown: %s", bare_name(summary["Names"]), error)
            record = Record()
        return summary_state(summary, record)

    def measured(self) -> tuple[tuple[ContainerState, Metrics], ...]:
        """Return all containers and their metrics: one request to Docker, values from the kernel."""
        found = []
        for summary in self.client.containers():
            state = self._listed(summary)
            runs = state.status in (Status.RUNNING, Status.FROZEN)
            used = usage.read(self._host, summary["Id"], state.status) if runs else dataclasses.replace(
                NOTHING, status=state.status)
            if used:
                found.append((state, used))
        return tuple(found)

    def root_ids(self) -> tuple[int, int]:
        """Return the host's user and group ids of the containers' root, which the daemon may map."""
        directory = Path(self.client.info()["DockerRootDir"]).name
        mapped = re.fullmatch(r"([0-9]+)\.([0-9]+)", directory)
        return (int(mapped[1]), int(mapped[2])) if mapped else (0, 0)

    def held(self, devices: Iterable[Device]) -> Mapping[str, str]:
        """Return the containers that hold devices, with one request for each that this engine did not create."""
        known = tuple(devices)
        found: dict[str, str] = {}
        for summary in self.client.containers():
            record = self._record_or_none(summary["Id"])
            name = bare_name(summary["Names"])
            taken = record.devices if record else held.held(self._host_config(name), known)
            found |= {device.id: name for device in known if device.id in taken and device.id not in found}
        return found

    def _host_config(self, name: str) -> Mapping[str, Any]:
        try:
            return self.client.container(name)["HostConfig"]
        except errors.EngineNotFound:
            return {}  # deleted since the list was read

    # Queries of one container.

    def container(self, name: str) -> ContainerState:
        container = self.client.container(name)
        return container_state(container, self._record_or_none(container["Id"]))

    def exists(self, name: str) -> bool:
        try:
            self.client.container(name)
        except errors.EngineNotFound:
            return False
        return True

    def metrics(self, name: str) -> Metrics:
        container = self.client.container(name)
        status, pid = status_of(container), container["State"]["Pid"] or None
        used = usage.read(self._host, container["Id"], status) if pid else None
        return dataclasses.replace(used or NOTHING, status=status, pid=pid)

    def disks(self, name: str) -> None:
        pass

    def pid(self, name: str) -> int | None:
        return self._pid(self.client.container(name))

    def console_log(self, name: str) -> bytes:
        return self.client.logs(name, LINES)

    # Commands.

    def execute(self, name: str, command: Sequence[str], stdin: bytes, *, timeout: int) -> Executed:
        with contextlib.closing(self.command(name, command)) as begun:
            return begun.finish(stdin, timeout)

    def command(self, name: str, command: Sequence[str]) -> contract.Command:
        return Command(self.client, self._privileged, name, command)

    # Life cycle.

    def create(self, spec: ContainerSpec, more: Mapping[str, Any] | None = None) -> None:
        """Create a container."""
        body = config.container(spec, self._disk() if spec.root.io != IoLimit() else None, more)
        of_image = (self.client.image(spec.image).get("Config") or {}).get("Healthcheck") or {}
        if check := config.limited_health(body.get("Healthcheck") or {}, of_image):
            body["Healthcheck"] = check
        with Rollback(f"creation of container {spec.name}") as undo:
            container = self.client.create(spec.name, body)
            undo.on_error("the container", self.client.remove, container)
            self._records.write(container, dataclasses.replace(config.record_of(spec.parts), volumes_in_root=True,
                                                              container=spec.name, cores=spec.cpu.own_cores))

    def _disk(self) -> str | None:
        """Return the disk that holds the root file systems."""
        return blockdisk.holding(self._host, self.client.info()["DockerRootDir"])

    def reconfigure(self, name: str, spec: ContainerSpec) -> None:
        """Set the CPUs, memory and labels of ``spec`` on a container, stopped or running; all limits or none."""
        allowed = self._host.fields("/proc/self/status")
        with self._recorded_cores(name, spec.cpu.own_cores):
            self.client.update(name, config.update(spec, allowed["Cpus_allowed_list"], allowed["Mems_allowed_list"]))
        container = self.client.container(name)
        record = self._record_or_none(container["Id"])
        if record is not None and container_state(container, record).labels != spec.labels:
            self._write_labels(container["Id"], spec.labels)

    def own(self, name: str) -> tuple[str, ContainerState]:
        """Return Docker's id and the state of a container that this engine created.

        :raises EngineNotFound: this engine created none of that name or id
        """
        container = self.client.container(name)
        return container["Id"], container_state(container, self._records.read(container["Id"]))

    def relabel(self, name: str, labels: Mapping[str, str | None]) -> None:
        container, state = self.own(name)
        merged = dict(state.labels) | dict(labels)
        self._write_labels(container, {key: text for key, text in merged.items() if text is not None})

    def _write_labels(self, container: str, labels: Mapping[str, str]) -> None:
        """Replace the labels with which a container was created.

        :param container: Docker's id
        """
        with self._locked(container):
            record = self._records.read(container)
            self._records.write(container, dataclasses.replace(record, labels=dict(labels)))

    @contextlib.contextmanager
    def _recorded_cores(self, name: str, cores: frozenset[int]) -> Iterator[None]:
        """Record the container's exclusive cores; while the block changes them, the former ones too.

        If it fails, only the former ones. A container that others created has no record."""
        container = self.client.container(name)["Id"]
        record = self._record_or_none(container)
        if record is None or record.cores == cores:
            yield
            return
        self._write_cores(container, record.cores | cores)
        try:
            yield
        except BaseException:
            self._write_cores(container, record.cores)
            raise
        self._write_cores(container, cores)

    def _write_cores(self, container: str, cores: frozenset[int]) -> None:
        with self._locked(container):
            self._records.write(container, dataclasses.replace(self._records.read(container), cores=cores))

    def rename(self, name: str, new: str) -> None:
        container = self.client.container(name)["Id"]
        self.client.rename(container, new)
        with self._locked(container):
            record = self._record_or_none(container)
            if record:
                self._records.write(container, dataclasses.replace(record, container=new))

    def start(self, name: str) -> None:
        if status_of(self.client.container(name)) is not Status.RUNNING:
            self.client.start(name)

    def stop(self, name: str, *, timeout: int, force: bool = False) -> None:
        container = self.client.container(name)
        if not container["State"]["Running"]:
            return
        if status_of(container) is Status.FROZEN:
            # A frozen process cannot handle a signal.
            self.unfreeze(name)
        else:
            self._freezer.thaw_unrecorded(name)
        try:
            self.client.signal(name, "SIGKILL" if force else container["Config"].get("StopSignal") or "SIGTERM")
            self.client.await_end(name, timeout)
        except errors.EngineUnavailable:
            raise
        except errors.EngineError as error:
            if not self.client.container(name)["State"]["Running"]:  # like a container being removed
                return
            if isinstance(error, errors.EngineTimeout):
                raise errors.EngineTimeout(f"container {name} did not end within {timeout} s and still runs") from error
            raise

    def wait_started(self, name: str, timeout: float) -> int | None:
        """Wait until the program of a newly started container runs or has ended.

        It counts as running when it waits for an event, or after ``timeout`` seconds.

        :returns: its exit status; None if it runs
        """
        container = self.client.container(name)
        pid = container["State"]["Pid"]
        if pid and not startup.wait_started(self._host, container["Id"], pid, timeout):
            return None
        return self.client.await_end(name, self.client.settings.request_timeout)

    def freeze(self, name: str) -> None:
        self._freezer.freeze(name)

    def unfreeze(self, name: str) -> None:
        self._freezer.unfreeze(name)

    def delete(self, name: str) -> None:
        """Delete a container and its record, even if the container is already gone."""
        try:
            container = self.client.container(name)["Id"]
            self.stop(container, timeout=self.client.settings.operation_timeout, force=True)
            self._remove(container)
        except errors.EngineNotFound:
            self._forget(name)
            return
        self._records.remove(container)

    def has_record(self, name: str) -> bool:
        """Return whether a container of the name has a record, even if Docker does not have the container.

        :raises EngineError: a record cannot be read
        """
        # Records of earlier versions have no container id: keep them for any container unknown to Docker.
        return any(record.container == name or (not record.container and not self.exists(container))
                   for container in self._records.ids() if (record := self._record_or_none(container)))

    def _forget(self, name: str) -> None:
        """Remove the records of containers of that name that Docker no longer has."""
        for container in self._records.ids():
            try:
                record = self._record_or_none(container)
            except errors.EngineError as error:
                LOG.warning("The container of a record is unknown: %s", error)
                continue
            if record and record.container == name and not self.exists(container):
                self._records.remove(container)

    def _remove(self, container: str) -> None:
        """Remove a container, or wait until another caller has removed it."""
        retry(lambda: self.client.remove(container), errors.EngineBusy, self.client.settings.operation_timeout,
              BUSY_INTERVAL)

    # Devices.

    def attach(self, name: str, part: Part) -> None:
        """Attach a part to a container, stopped or running.

        :raises SpecError: the part needs an option that is fixed at creation
        """
        wanted = config.part_record(part)
        with self._found(name) as (container, record, pid):
            require_made_for(container, grants_of([part]))
            require_libraries(container, pid, wanted.libraries - record.libraries)
            with Rollback(f"attachment to container {name}") as undo:
                self._records.write(container["Id"], record | wanted)
                undo.on_error("its record", self._records.write, container["Id"], record)
                if pid is not None:
                    self._give(pid, wanted, record, undo)
                    self._set_up(pid, wanted, record)
                    memorynodes.admit(self._host, self._privileged, lambda: pid, grants_of([part]))

    def _give(self, pid: int, wanted: Record, before: Record, undo: Rollback) -> None:
        """Give a running container the contents of its record.

        This includes older entries: the process that recorded them may have been killed before it applied them."""
        for node in sorted(wanted.nodes):
            self._privileged.give_node(pid, node.path, node.number)
            if node not in before.nodes:
                undo.on_error(node.path, self._privileged.take_node, pid, node.path, node.number)
        seen = self._privileged.inside(pid).netdevs if wanted.netdevs & before.netdevs else ()
        for netdev in sorted(wanted.netdevs):
            if netdev in before.netdevs and netdev.name in seen:
                continue
            self._privileged.move_in_netdev(pid, netdev.host_name, netdev.name)
            undo.on_error(netdev.name, self._privileged.fetch_netdev, pid, netdev.name, netdev.host_name)

    def _set_up(self, pid: int, wanted: Record, before: Record) -> None:
        """Configure the interfaces, also present ones: their addresses may have changed."""
        setups = {netdev.name: netdev.setup for netdev in before.netdevs}
        for netdev in sorted(wanted.netdevs):
            if netdev.setup:
                self._privileged.set_addresses(pid, netdev.name, netdev.setup, setups.get(netdev.name))

    def detach(self, name: str, part: Part, remaining: Sequence[Part] = ()) -> None:
        with self._found(name) as (container, record, pid):
            go = record.called_here(config.going(part, remaining, record))
            with memorynodes.withdrawn(self._host, self._privileged, lambda: pid, grants_of([part]),
                                       grants_of(remaining)):
                self._take(pid, go, is_grant=isinstance(part, Grant))
            self._records.write(container["Id"], record - go)

    def _take(self, pid: int | None, go: Record, *, is_grant: bool) -> None:
        if pid is None:
            return
        for netdev in go.netdevs if is_grant else ():
            require_interface(netdev.name, netdev.host_name, self._privileged.inside(pid), self._host)
        for node in sorted(go.nodes):
            self._privileged.take_node(pid, node.path, node.number)
        for netdev in sorted(go.netdevs):
            self._privileged.fetch_netdev(pid, netdev.name, netdev.host_name)

    def allow_again(self) -> None:
        """Allow running containers their devices again, because a daemon-reload of systemd forgets that. Idempotent."""
        self._each(self._allow_again, "may not open all its devices")

    def thaw_abandoned(self) -> None:
        """Thaw containers frozen without Docker's knowledge, unless a process copies their root.

        Idempotent."""
        self._each(self._freezer.thaw_abandoned, "stays frozen")

    def _each(self, act: Callable[[str], None], trouble: str) -> None:
        """Apply a function to all containers, logging failures."""
        for container in self._records.ids():
            try:
                act(container)
            except errors.EngineNotFound:
                continue  # deleted since the list was read
            except (errors.EngineError, errors.HostActionFailed) as error:
                LOG.warning("Container %s %s: %s", container[:12], trouble, error)

    def _allow_again(self, container: str) -> None:
        with self._locked(container):
            nodes = self._records.read(container).nodes
            pid = usage.first_process_of(self._host, container) if nodes else None
            if pid is not None:
                for node in sorted(nodes):
                    self._privileged.allow_node(pid, node.number)

    def update_devices(self, name: str, parts: Sequence[Part]) -> None:
        wanted = config.record_of(parts)
        with self._found(name) as (container, record, pid):
            if status_of(container) is not Status.STOPPED or pid is not None:
                raise errors.EngineConflict(f"container {name} is running: stop it before its parts are replaced")
            require_made_for(container, grants_of(parts))
            self._records.write(container["Id"],
                                dataclasses.replace(wanted, volumes_in_root=record.volumes_in_root,
                                                    container=record.container, cores=record.cores,
                                                    labels=record.labels))

    def verify(self, name: str, grants: Sequence[Grant]) -> None:
        """Check what the running container sees from the host, through its first process; runs no program of it."""
        require_as_granted(name, self.client.container(name)["State"]["Pid"], grants, self._privileged, self._host)

    # Helpers.

    @contextlib.contextmanager
    def _found(self, name: str) -> Iterator[tuple[Mapping[str, Any], Record, int | None]]:
        """Lock a container against starts and other changes.

        :returns: Docker's document, the container's record, and its first process
        :raises EngineTimeout: the other operation does not finish
        """
        container = self.client.container(name)
        # No request while the lock is held: Docker does not respond while it starts a container, and its runtime waits
        # for the lock.
        with self._locked(container["Id"]):
            yield container, self._records.read(container["Id"]), self._pid(container)

    def _pid(self, container: Mapping[str, Any]) -> int | None:
        """Return the container's first process, from the control group if Docker does not yet report it.

        The request preceded the lock, and Docker reports a container that is starting only later."""
        pid = container["State"]["Pid"]
        return pid if pid and runs(pid) else usage.first_process_of(self._host, container["Id"])

    @contextlib.contextmanager
    def _locked(self, container: str) -> Iterator[None]:
        """Lock the container against starts and changes.

        :param container: Docker's id
        :raises EngineTimeout: another process keeps it locked
        """
        lock = FileLock(Path(recordfiles.lock(str(self._records.directory), container)), LOCK_TIMEOUT)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(lock.held())
            except TimeoutError as error:
                raise errors.EngineTimeout(f"what container {container[:12]} has is being changed: {error}") from error
            except OSError as error:
                raise errors.EngineError(f"container {container[:12]} cannot be locked: {error}") from error
            yield

    def _record_or_none(self, container: str) -> Record | None:
        """Return a container's record; None for a container that this engine did not create."""
        try:
            return self._records.read(container)
        except errors.EngineNotFound:
            return None


def require_made_for(container: Mapping[str, Any], grants: Sequence[Grant]) -> None:
    missing = config.lacking(container["HostConfig"], grants)
    if missing:
        raise errors.SpecError(f"{', '.join(grant.device.id for grant in grants)} needs {' and '.join(missing)}, which "
                               f"are fixed when container {bare_name([container['Name']])} is created: attach it "
                               "while the container is stopped")


def require_libraries(container: Mapping[str, Any], pid: int | None, more: Collection[str]) -> None:
    """Refuse libraries that a running container was started without.

    :raises SpecError: it was started without them
    """
    if pid is not None and more:
        raise errors.SpecError(f"the libraries of the GPU's driver ({', '.join(sorted(more))}) are mounted when "
                               f"container {bare_name([container['Name']])} starts: stop it first")
