# SPDX-License-Identifier: Apache-2.0
"""Sequences of claims and releases by several drivers of one host, with kills, restarts, sick devices, bad records.

A driver configures its container between the claim and the release, as its engine tells everybody (``held``).
"""

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from containerhost import errors
from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.refusals import Request
from containerhost.allocation.store import Consumer
from containerhost.devices.model import Device, Kind, Role
from containerhost.inventory.scan import scan
from containerhost.linux.sysfs import Host
from tests.model import frame
from tests.model.inmemory import Store, View
from tests.unit.containerhost.hosts import MEMORY, shared
from tests.unit.nova.fakes import NoPrivileges

ENGINE = "engine"
CONTAINERS = {name: driver for driver in ("nova", "lxdone") for name in (f"{driver}-a", f"{driver}-b")}
DAMAGES = {"empty": b"", "garbage": b"\0\xff{", "of another kind": b'{"version": 2}\n'}
REFUSALS = (errors.DeviceError, errors.SpecError, errors.HostActionFailed, errors.AllocationsUnreadable)


class Killed(BaseException):
    """The process ends here, as by kill -9."""


class Steps:
    """What a process does to the host and to the records: it may be killed before each step."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.alive = True

    def pass_one(self) -> None:
        if not self.alive:
            raise Killed
        if self.left is None:
            return
        if self.left == 0:
            self.alive = False
            raise Killed
        self.left -= 1


class Root(NoPrivileges):
    """:ivar broken: whether resets fail
    :ivar dirty: devices that a container has had since they were last reset
    """

    def __init__(self, steps: Steps, dirty: dict[str, str]) -> None:
        self._steps = steps
        self.dirty = dirty
        self.broken = False

    def reset_gpu(self, vendor: str, address: str, *others: Any) -> bool:
        self._steps.pass_one()
        if self.broken:
            raise errors.HostActionFailed(f"{address} is not reset")
        self.dirty.pop(address, None)
        return True

    def unbind(self, address: str, driver: str) -> None:
        self._steps.pass_one()
        if self.broken:
            raise errors.HostActionFailed(f"{address} is not unbound")

    def bind(self, address: str, driver: str) -> None:
        self._steps.pass_one()
        self.dirty.pop(address, None)

    def reset(self, address: str) -> bool:
        self._steps.pass_one()
        return True

    def rename_netdev(self, name: str, new: str) -> None:
        self._steps.pass_one()

    def link_down_and_flush(self, name: str) -> None:
        self._steps.pass_one()

    def mark_reset(self, address: str, counters: Mapping[str, int]) -> None:
        self._steps.pass_one()

    def thaw_left(self) -> None:
        self._steps.pass_one()


TREE = shared("small")
DEVICES = {device.id: device for device in scan(TREE).devices}
GIVEN = sorted(name for name, device in DEVICES.items() if device.kind is Kind.GPU or device.role is Role.VF)
wanted = st.lists(st.sampled_from(GIVEN), min_size=1, max_size=3, unique=True)
device_id = st.sampled_from(GIVEN)
container_name = st.sampled_from(sorted(CONTAINERS))
kill = st.none() | st.integers(0, 8)


class Allocation(frame.Machine):
    """:ivar configured: devices in the configuration of each container that exists, on the engine
    :ivar damaged: what each damaged record was before, and what it became
    :ivar given: devices whose records say that a container was given them
    :ivar handed_over: how often each device was freed after that
    """

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="model-", dir=MEMORY))
        self.devices = dict(DEVICES)
        self.configured: dict[str, set[str]] = {}
        self.damaged: dict[Path, tuple[bytes, bytes]] = {}
        self.dirty: dict[str, str] = {}
        self.broken = False
        self.boot = 0
        self.given: set[str] = set()
        self.handed_over = dict.fromkeys(DEVICES, 0)

    # Parts of the rules

    def allocator(self, kill: int | None = None) -> tuple[DeviceAllocator, Store]:
        """Return the allocator of a new process, which is killed before its step number ``kill``."""
        machine, steps = self, Steps()
        steps.left = kill

        class Booted(Host):
            boot_id = property(lambda self: f"boot-{machine.boot}")  # type: ignore[assignment]
        host = Booted(TREE.root)
        store, root = Store(self.root, host, steps.pass_one), Root(steps, self.dirty)
        root.broken = self.broken
        return DeviceAllocator(store, lambda: View(self.devices), root, self.held, host), store

    def held(self, devices: Iterable[Device]) -> Mapping[str, str]:
        asked = {device.id for device in devices}
        return {device: name for name, found in self.configured.items() for device in found & asked}

    @staticmethod
    def consumer(name: str) -> Consumer:
        return Consumer(CONTAINERS[name], ENGINE, name, f"uuid of {name}")

    def attempt(self, what: str, action: Callable[[], Any]) -> bool:
        """Run a process; whether it came to its end without an error."""
        try:
            action()
        except Killed:
            self.count(f"{what}: killed")
        except REFUSALS as error:
            self.count(f"{what}: {type(error).__name__}")
            unreadable = isinstance(error, errors.AllocationsUnreadable)
            assert self.damaged or not unreadable, f"sound records cannot be read: {error}"
        else:
            self.count(what)
            return True
        return False

    def release(self, name: str, kill: int | None = None) -> None:
        allocator, _ = self.allocator(kill)
        self.attempt("release", lambda: allocator.release(self.consumer(name)))

    # Rules

    @rule(name=container_name, ids=wanted, kill=kill)
    def create(self, name: str, ids: Collection[str], kill: int | None) -> None:
        """Claim devices, and let the engine create the container with them; a failed creation gives them back."""
        if name in self.configured:
            return
        allocator, _ = self.allocator(kill)
        before = self.dirty.copy()
        if self.attempt("create", lambda: allocator.acquire([Request(device) for device in ids], self.consumer(name))):
            for device in ids:
                assert before.get(device) in (None, name), f"{device} was not cleaned after {before[device]}"
                self.dirty[device] = name
            self.configured[name] = set(ids)
        elif kill is None:
            self.release(name)

    @precondition(lambda self: self.configured)
    @rule(data=st.data(), kill=kill)
    def end(self, data: Any, kill: int | None) -> None:
        """Delete a container, then release what it had."""
        name = data.draw(st.sampled_from(sorted(self.configured)), "container")
        del self.configured[name]
        self.release(name, kill)

    @precondition(lambda self: any(self.configured.values()))
    @rule(data=st.data(), kill=kill)
    def detach(self, data: Any, kill: int | None) -> None:
        """Take one device from a container, which goes on."""
        name, device = data.draw(st.sampled_from(sorted(
            (name, device) for name, found in self.configured.items() for device in found)), "device")
        self.configured[name].discard(device)
        allocator, _ = self.allocator(kill)
        self.attempt("detach", lambda: allocator.release_device(device, self.consumer(name), None))

    @rule(driver=st.sampled_from(sorted(set(CONTAINERS.values()))), kill=kill)
    def restart(self, driver: str, kill: int | None) -> None:
        """Start a driver: it finishes or undoes what the one before left."""
        allocator, _ = self.allocator(kill)
        self.attempt("reconcile", lambda: allocator.reconciler.reconcile(driver, ENGINE, list(self.configured)))

    @rule()
    def reboot(self) -> None:
        self.boot += 1

    @rule(device=device_id, state=st.sampled_from(["well", "sick", "gone"]))
    def change_device(self, device: str, state: str) -> None:
        self.devices.pop(device, None)
        if state != "gone":
            health = ("it fell off the bus",) if state == "sick" else ()
            self.devices[device] = dataclasses.replace(DEVICES[device], health=health)

    @rule(broken=st.booleans())
    def change_resets(self, broken: bool) -> None:
        self.broken = broken

    @rule(device=device_id, kill=kill)
    def scrub(self, device: str, kill: int | None) -> None:
        """Clean a device for the operator."""
        allocator, _ = self.allocator(kill)
        self.attempt("scrub", lambda: allocator.repair.clean(device))

    @precondition(lambda self: not self.damaged and list(self.root.glob("*.json")))
    @rule(data=st.data(), how=st.sampled_from(sorted(DAMAGES)))
    def damage(self, data: Any, how: str) -> None:
        path = data.draw(st.sampled_from(sorted(self.root.glob("*.json"))), "record")
        self.damaged[path] = path.read_bytes(), DAMAGES[how]
        path.write_bytes(DAMAGES[how])

    @precondition(lambda self: self.damaged)
    @rule()
    def mend(self) -> None:
        """Restore the damaged record, as the message advises, unless it was removed or rewritten since."""
        for path, (sound, damaged) in self.damaged.items():
            if path.exists() and path.read_bytes() == damaged:
                path.write_bytes(sound)
        self.damaged.clear()

    # What always holds

    @invariant()
    def holds(self) -> None:
        """A container's devices are its own, and the records say so."""
        users: dict[str, str] = {}
        records = {} if self.damaged else self.allocator()[1].records()
        for name, found in self.configured.items():
            for device in found:
                assert users.setdefault(device, name) == name, f"{name} and {users[device]} have {device}"
                if not self.damaged:
                    record = records.get(device)
                    assert record and record.consumer.container == name, f"{name} has {device}, its record: {record}"

    @invariant()
    def provenance(self) -> None:
        """Each device that a container was given, and that is free now, was handed over once, whatever was killed."""
        if self.damaged:
            return
        _, store = self.allocator()
        records = store.records()
        for device in self.given - records.keys():
            self.handed_over[device] += 1
        self.given = {device for device, record in records.items() if record.given}
        for device, count in self.handed_over.items():
            found = store.hand_overs(device)
            assert count == (found[-1]["number"] if found else 0), f"{device}: {count} hand-overs, kept are {found}"
            assert not [entry for entry in found if not entry["cleaned"]], f"{device} is free uncleaned: {found}"

    @invariant()
    def others_end(self) -> None:
        """A container without devices ends, whatever record cannot be read."""
        allocator, _ = self.allocator()
        if self.damaged:
            allocator.release(Consumer("nova", ENGINE, "without-devices", "uuid"))

    def teardown(self) -> None:
        try:
            self.mend()
            self.devices, self.broken = dict(DEVICES), False
            for name in tuple(self.configured):
                del self.configured[name]
            for driver in sorted(set(CONTAINERS.values())):
                self.restart(driver, None)
            allocator, store = self.allocator()
            for device in store.records():
                allocator.repair.clean(device)
            assert not store.records(), f"records are left: {store.records()}"
        finally:
            shutil.rmtree(self.root)


class AllocationTest(frame.ModelTest):
    machine = Allocation
    rounds = 12
