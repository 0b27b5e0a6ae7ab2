# SPDX-License-Identifier: Apache-2.0
"""A node of OpenNebula's: what both drivers have there, real over an engine, devices and mounts in memory."""

import abc
import contextlib
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.sharedmemory import SharedMemories
from containerhost.allocation.states import State
from containerhost.devices.model import Device
from containerhost.engines.contract import Status
from containerhost.errors import ContainerHostError
from containerhost.inventory.scan import HostView
from onedriver.actions import Call
from onedriver.errors import DriverError
from onedriver.node import context, vmlock
from onedriver.node.device_recovery import DeviceRecovery
from onedriver.node.measure import Measure
from onedriver.node.vmm import BaseVmm
from onedriver.vm import Vm
from tests.model.disk import FULL, POWER_CUT, Disk
from tests.model.hardware import Hardware, Reads, Root, pristine
from tests.model.inmemory import Store, View
from tests.model.opennebula.engine import Engine, Killed, Process
from tests.unit.containerhost.hosts import shared

REFUSALS = (ContainerHostError, DriverError)
TREE = shared("small")
DATASTORE = 0


class Contexts(context.Contexts):
    def __init__(self, state: Path, process: Process) -> None:
        super().__init__(state)
        self._process = process

    def write(self, *args: Any, **more: Any) -> Path:
        self._process.step()
        return super().write(*args, **more)

    def remove(self, name: str) -> None:
        self._process.step()
        super().remove(name)

    def clear(self, name: str, but: str) -> None:
        self._process.step()
        super().clear(name, but)


class Commands:
    """No VM has a command."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def cancel(self, name: str) -> None:
        self._process.step()


class Node(abc.ABC):
    """:ivar devices: the host's, by id
    :ivar boot: how often the host was started
    :ivar scanned: whether the host's files are read, instead of ``devices``, and reads and actions of root are steps
    :ivar watched: whether the changes of the disk are steps of the next process
    :ivar choice: which of the states that a power cut may leave it leaves
    :ivar choices: how many the last one had
    """

    driver: ClassVar[str]
    engine: Engine

    def __init__(self, directory: Path, devices: Mapping[str, Device]) -> None:
        self.directory = directory
        self.state, self.owners = directory / "state", directory / "owners"
        self.datastores = directory / "datastores"
        for each in (self.state, self.owners, self.datastores / str(DATASTORE)):
            each.mkdir(parents=True)
        self.devices = dict(devices)
        self.process = Process()
        self.boot = 0
        self.disk_of_host = Disk(directory, self.process.step)
        self.watched, self.choice, self.choices = False, 0, 0
        node = self

        class Booted(Reads):
            boot_id = property(lambda self: f"boot-{node.boot}")  # type: ignore[assignment]
        self.scanned = False
        self.host = Booted(pristine(), self._step_of_host)
        self.store = Store(self.owners, self.host, self.process.step)
        self.privileged: Any = Root(Hardware(pristine()), self._step_of_host)

    def _step_of_host(self, what: str) -> str | None:
        return self.process.step(what) if self.scanned else None

    @property
    def allocator(self) -> DeviceAllocator:
        return DeviceAllocator(self.store, lambda: HostView(self.host) if self.scanned else View(self.devices),
                               self.privileged, self.engine.held, self.host)

    @property
    def memories(self) -> SharedMemories:
        return SharedMemories(self.owners, self.driver, self.engine.name, self.privileged)

    @property
    def recovery(self) -> DeviceRecovery:
        return DeviceRecovery(self.driver, self.engine.name, lambda vm_id: self.vmm().has_container(vm_id),
                              self.allocator, self.memories, self.state)

    @abc.abstractmethod
    def vmm(self) -> BaseVmm: ...

    @abc.abstractmethod
    def measure(self) -> Measure: ...

    @abc.abstractmethod
    def prepare(self, call: Call) -> None:
        """Do what the driver's command does before an action, without the VM's lock."""

    @abc.abstractmethod
    def reconcile(self) -> None: ...

    # Processes: each is killed, fails or ends as is planned.

    def act(self, call: Call) -> str | None:
        """Run an action of oned's."""
        self.prepare(call)
        with vmlock.held(self.state, call.vm_id, 0):
            return getattr(self.vmm(), call.action)(call)

    def monitor(self) -> str:
        """Run the probe of the VMs' states, and what it starts.

        :returns: what it prints
        """
        started: list[Any] = []
        with mock.patch("onedriver.node.monitored.detached", started.append), mock.patch.object(
                Measure, "_is_time_for_all", return_value=True):
            printed = self.measure().vm_status()
        if started:
            self.reconcile()
        return printed

    # The host.

    def restart(self) -> None:
        """Restart the machine: containers are off, mounts are gone."""
        self.boot += 1
        self.engine.statuses = dict.fromkeys(self.engine.statuses, Status.STOPPED)

    def cut_power(self) -> None:
        self.choices = self.disk_of_host.cut_power(self.choice)
        self.restart()

    # OpenNebula's transfer driver.

    def disk(self, vm_id: int, number: int = 0) -> Path:
        return self.datastores / str(DATASTORE) / str(vm_id) / f"disk.{number}"

    def move(self, vm_id: int, directory: Path) -> None:
        """Move a VM's disks to another node."""
        shutil.copytree(self.disk(vm_id).parent, directory / str(vm_id), symlinks=True)
        shutil.rmtree(self.disk(vm_id).parent)

    @abc.abstractmethod
    def replace_disk(self, vm_id: int, number: int, content: int) -> None:
        """Let a disk have another content, as the transfer driver does by a new file."""

    @abc.abstractmethod
    def cleared(self, vm_id: int) -> Path | None:
        """Remove the driver's own mark beside the VM's disks.

        :returns: its place; None where the driver has data there
        """

    @abc.abstractmethod
    def transfer(self, vm: Vm) -> None:
        """Make the VM's disks."""

    @abc.abstractmethod
    def make_disk(self, vm_id: int, number: int) -> None:
        """Make the file of a disk with a file system."""

    @abc.abstractmethod
    def remove_disks(self, vm_id: int) -> None: ...

    @abc.abstractmethod
    def leave(self, vm_id: int) -> None:
        """Let a VM's disks leave the node, in the directory that stays."""

    @abc.abstractmethod
    def content_of_disk(self, vm_id: int) -> int:
        """Return which of the VM's writes its disk has; -1 without a disk."""

    @abc.abstractmethod
    def left(self) -> dict[str, Any]:
        """Return what is left, in words, when no VM is."""

    @abc.abstractmethod
    def remove_orphans(self) -> None:
        """Remove the containers of VMs that OpenNebula does not know, as an administrator does."""

    def administer(self) -> None:
        """Do what is left to an administrator: also scrub the devices that are blocked until the host restarts."""
        self.remove_orphans()
        self.scrub()

    def scrub(self) -> None:
        for device, record in self.store.records().items():
            if record.state is State.BLOCKED:
                self.allocator.repair.clean(device)

    def content(self, vm_id: int) -> int:
        """Return the latest of the VM's writes that is anywhere."""
        return max([self.content_of_disk(vm_id), *(self.engine.content[name] for name in self.engine.of_vm(vm_id))])

    def homes(self) -> list[str]:
        """Return the names of the VMs' directories that have anything."""
        return sorted(path.name for path in self.state.glob("one-*") if any(path.iterdir()))


def outcome(node: Node, plan: Iterable[tuple[int, str]], action: Callable[[], Any]) -> tuple[str, Any]:
    """Run a process.

    :returns: done, failed or killed, and what it returned or raised
    """
    node.process.begin(plan)
    watched, node.watched = node.watched, False
    try:
        with node.disk_of_host.watched() if watched else contextlib.nullcontext():
            result = action()
            if watched:
                node.process.step("end")
            return "done", result
    except Killed as error:
        if POWER_CUT in node.process.met:
            node.cut_power()
        return "killed", error
    except REFUSALS as error:
        return "failed", error
    except OSError as error:
        if FULL not in node.process.met:
            raise
        return "failed", error
    finally:
        met, passed = node.process.met, node.process.steps
        node.process.begin(())
        for each in (node.engine, node.host, node.privileged):
            each.go_on()
        node.process.met, node.process.passed = met, passed
