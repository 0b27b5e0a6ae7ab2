# SPDX-License-Identifier: Apache-2.0
"""Act on the VMs of one node as oned does, and check the invariants: the same with both drivers.

oned calls one action at a time for a VM, gives it the state that the VM has meanwhile (LCM_STATE), and goes on by
whether it succeeded; see :data:`ACTIONS`. The transfer driver follows an end. A killed action has failed for oned, or
its answer is lost: then an administrator recovers the VM, or monitoring says what became of it.
"""

import contextlib
import dataclasses
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import invariant

from containerhost.allocation.states import State
from containerhost.devices.model import Device, Kind
from containerhost.engines.contract import Status
from containerhost.engines.spec import ContainerSpec, Cpu, Memory, RootDisk, grants_of
from containerhost.inventory.scan import scan
from onedriver.actions import Call
from onedriver.node.names import name
from onedriver.node.vm_ids import consumer
from onedriver.pciaddress import from_device_id
from onedriver.vm import MIB, Disk, Pci, Vm
from tests.model import frame
from tests.model.opennebula.node import TREE, Node, outcome
from tests.model.opennebula.transitions import ACTIONS, CLEANUP_DELETE, TERMINATE, Transition
from tests.unit.lxdone.machines import machine

DEVICES = {device.id: device for device in scan(TREE).devices}
GPUS = {name: device for name, device in DEVICES.items() if device.kind is Kind.GPU}
ROOT, VOLATILE, FURTHER = 0, 1, 3  # numbers of disks; the last may be attached

# What is the same after an action that failed as it was before.
SAME = ("containers", "devices", "records", "running")
KEPT = ("containers", "devices", "records")
COMPARED = {"attach_nic": ("containers", "running"), "detach_nic": ("containers", "running"),
            "resize": (*SAME, "memory"), "save": SAME, "snapshot_create": SAME, "attach_disk": SAME,
            "detach_disk": SAME, "copy_disk": SAME, "resize_disk": SAME, "snapshot_revert": ("containers",),
            "reboot": ("containers",), "reset": ("containers",)}
# Runs afterwards if it ran before: oned reverts only VMs that run, and one that is off was left so by an interruption.
GOES_ON = ("snapshot_revert",)
STARTS = ("deploy", "restore", "reboot", "reset", *GOES_ON)
# Without an action of the driver.
UNDEPLOYS, ENDS = ("poweroff",), ("poweroff", "suspended", "stopped", "undeployed")
AWAY = ("stopped", "undeployed")  # the VM's disks have left the node
ELSEWHERE = "elsewhere"  # the VM has moved to another node
HERE = ("running", "poweroff", "suspended", "unknown")  # oned places the VM on the node

# What oned learns of a killed action: that it failed; nothing, until somebody tells it or monitoring does; that it
# succeeded, because somebody tells it so.
FAILURE, NOTHING, SUCCESS = "failure", "nothing", "success"


@dataclasses.dataclass
class Server:
    """A VM as oned has it.

    :ivar written: the last of its writes
    :ivar kept: the last of its writes that nobody gave up
    :ivar snapshots: which writes each has
    :ivar stuck: the transition whose end oned waits for
    """

    vm: Vm
    state: str = "boot failure"
    written: int = 0
    kept: int = 0
    snapshots: dict[int, int] = dataclasses.field(default_factory=dict)
    stuck: Transition | None = None


class World(frame.Machine):
    """Hold one node and its VMs as oned has them.

    :ivar gone: numbers of the VMs of whose end the node may not have heard: `recover --delete` goes on in any case
    :ivar foreign: names of containers that this driver did not make
    :ivar marks: what is in the place of the driver's marks
    :ivar result, done, steps: how the last action ended, whether oned takes it for done, and its steps
    """

    node_class: ClassVar[type[Node]]
    devices: Mapping[str, Device] = GPUS  # that the host has
    node: Any

    def __init__(self) -> None:
        super().__init__()
        self._stack = contextlib.ExitStack()
        # Not in /dev/shm, though it is fast: the driver takes what is in /dev for a device.
        directory = Path(tempfile.mkdtemp(prefix="model-"))
        self._stack.callback(shutil.rmtree, directory)
        self.directory = directory
        (directory / ELSEWHERE).mkdir()
        self.node = self.node_class(directory, self.devices)
        self.node.install(self._stack)
        self.servers: dict[int, Server] = {}
        self.last = 0
        self.gone: set[int] = set()
        self.foreign: set[str] = set()
        self.marks: list[Path] = []
        self.victim = directory / "victim"
        self.victim.write_text("of the host")
        self.result, self.done, self.steps = "", False, list[str]()

    def drawn(self, data: Any, servers: Iterable[int]) -> Server:
        return self.servers[data.draw(st.sampled_from(sorted(servers)), "VM")]

    def having(self, *states: str) -> list[int]:
        return [number for number, server in self.servers.items() if server.state in states and server.stuck is None]

    def act(self, server: Server, transition: Transition, vm: Vm | None = None, plan: Any = (), lost: str = FAILURE,
            **arguments: str) -> str:
        """Let the driver act, and oned go on by the result.

        :param vm: as it is described to the driver
        :param lost: what oned learns of a killed action
        """
        vm = (vm or server.vm)._replace(lcm_state=transition.lcm)
        before = self.seen(server)
        call = Call(transition.action, arguments, vm.id, "host", vm)
        result, found = outcome(self.node, plan, lambda: self.node.act(call))
        self.count(f"{transition.action} {transition.lcm}: {result}")
        self.result, self.done, self.steps = result, False, self.node.process.passed
        if result == "killed" and lost == NOTHING:
            server.stuck = transition
        else:
            if result == "failed" and self.node.process.met in ([], ["fails"]):  # else undoing may have failed, too
                self.failed_well(server, transition, before, found)
            self.done = result == "done" or (result == "killed" and lost == SUCCESS)
            self.proceed(server, transition, done=self.done)
            if result == "done":
                self.succeeded(server, transition, before, vm)
        return str(found) if result == "done" else ""

    def seen(self, server: Server) -> dict[str, Any]:
        """Return what the node has of a VM. Containers that an interrupted revert put aside count as the VM's one."""
        own, engine = sorted(self.node.engine.of_vm(server.vm.id)), self.node.engine
        return {"containers": sorted(set(map(base, own))),
                "devices": {grant.device.id for each in own for grant in grants_of(engine.specs[each].parts)},
                "records": self.records(server.vm.id), "memory": [engine.specs[each].memory for each in own],
                "running": sorted({base(each) for each in own if engine.statuses[each] is Status.RUNNING}),
                "alive": [each for each in own if engine.statuses[each] is not Status.STOPPED]}

    def records(self, vm_id: int) -> set[str]:
        mine = consumer(self.node.driver, self.node.engine.name, vm_id)
        return {device for device, record in self.node.store.records().items()
                if record.consumer == mine and record.state is not State.BLOCKED}

    def failed_well(self, server: Server, transition: Transition, before: dict[str, Any], error: Any) -> None:
        """Require that a failed action left what was there. One that leaves the node may be off already, and without
        its container if its disk has everything."""
        after = self.seen(server)
        compared = () if transition.done in AWAY else COMPARED.get(transition.action, ())
        if transition.done in ENDS and transition.done not in AWAY:
            compared = KEPT
        for what in compared:
            assert before[what] == after[what], (
                f"{transition.action} of VM {server.vm.id} failed ({error}), {what} were {before[what]}, "
                f"and are {after[what]}")
        for what in ("containers",) if transition.action in GOES_ON else ("containers", "running"):
            assert set(after[what]) <= set(before[what]), (
                f"{transition.action} of VM {server.vm.id} failed ({error}), {what} were {before[what]}, "
                f"and are {after[what]}")
        # It may have what oned lists, as from the next start on, and give back what a killed attachment left.
        if transition.action in ("reboot", "reset", "attach_nic"):
            wanted = {pci.chosen().device_id for pci in server.vm.pcis}
            for what in ("devices", "records"):
                assert before[what] & wanted <= after[what] <= before[what] | wanted, (
                    f"{transition.action} of VM {server.vm.id} failed ({error}), {what} were {before[what]}, "
                    f"and are {after[what]}; {wanted} are its")
        if not before["containers"]:
            assert after["records"] <= before["records"], (
                f"{transition.action} of VM {server.vm.id} failed ({error}), and it keeps {after['records']}")
        if transition.done in (*AWAY, "done") and before["containers"]:
            assert after["containers"] or after["records"] or name(server.vm.id) in self.node.homes(), (
                f"nothing is left of VM {server.vm.id} here, and {transition.action} failed ({error})")
        if transition.action in GOES_ON:
            assert set(before["running"]) <= set(after["running"]), (
                f"{transition.action} of VM {server.vm.id} failed ({error}), and it does not run any more")

    def succeeded(self, server: Server, transition: Transition, before: dict[str, Any], vm: Vm) -> None:
        """Require what oned relies on after an action."""
        after, number = self.seen(server), server.vm.id
        if transition.done == "running":
            wanted = {pci.chosen().device_id for pci in vm.pcis}
            if transition.action in STARTS:
                assert after["running"] == [name(number)], f"VM {number} has {after}"
                anew = not before["alive"] or transition.action in ("reboot", "reset")
                assert not anew or after["devices"] <= wanted, f"VM {number} is to have {wanted}, and has {after}"
                content = self.node.engine.content[name(number)]
                assert content >= server.kept, f"VM {number} wrote {server.kept}, and started with {content}"
            return
        assert not after["running"], f"VM {number} is {transition.done}, and runs"
        if transition.done not in ("suspended", "poweroff"):
            assert not after["containers"] and not after["records"], f"VM {number} left, and has {after}"

    def proceed(self, server: Server, transition: Transition, *, done: bool) -> None:
        server.stuck = None
        server.state = transition.done if done else transition.failed
        if server.state == "running":
            server.vm = server.vm._replace(deploy_id=name(server.vm.id))
        if done and transition.done in AWAY:
            self.leave(server)
        elif server.state == "done":
            self.delete_disks(server.vm.id)
        if server.state in ENDS:  # oned forgets the snapshots of a VM that is off: KEEP_SNAPSHOTS=no
            server.snapshots.clear()
            server.vm = server.vm._replace(snapshots=frozenset())

    def leave(self, server: Server, plan: Any = ()) -> None:
        """Let the transfer driver take the disks along; what fails is retried."""
        result, _ = outcome(self.node, plan, lambda: self.node.leave(server.vm.id))
        if result != "done":
            result, _ = outcome(self.node, (), lambda: self.node.leave(server.vm.id))
            if result != "done":
                self.count("leave: refused")
                server.state = "epilog failure"

    def delete_disks(self, vm_id: int, plan: Any = ()) -> None:
        del self.servers[vm_id]
        for faults in (plan, ()):
            result, error = outcome(self.node, faults, lambda: self.node.remove_disks(vm_id))
            if result == "done":
                return
        raise AssertionError(f"the disks of VM {vm_id} cannot be deleted: {error}")

    def devices_of(self, given: Iterable[str]) -> tuple[Pci, ...]:
        return tuple(Pci(number, from_device_id(device), None, None, None, nic_id=10 + number)
                     for number, device in enumerate(given))

    def free(self) -> list[str]:
        """Return the GPUs that oned gives away."""
        used = {pci.chosen().device_id for server in self.servers.values() for pci in server.vm.pcis}
        return sorted(self.node.devices.keys() - used)

    def described(self, persistent: bool, devices: Iterable[str]) -> Server:
        """Return a new VM whose disks are there."""
        self.last += 1
        vm = machine()
        root = vm.disks[ROOT]._replace(save=persistent)
        nic = vm.nics[0]._replace(target=f"{name(self.last)}-0")
        server = self.servers[self.last] = Server(vm._replace(
            id=self.last, lcm_state=0, deploy_id="", pcis=self.devices_of(devices), nics=(nic,), graphics={},
            disks=(root, volatile(VOLATILE)), snapshots=frozenset(), system_ds=0, memory=512 * MIB, vcpu=1, cpu=100))
        self.node.transfer(server.vm)
        return server

    def ask(self, server: Server, transition: Transition, plan: Any = (), lost: str = FAILURE) -> None:
        if transition.lcm == TERMINATE:
            server.kept = -1
        self.act(server, transition, plan=plan, lost=lost)

    def bring_back(self, server: Server, runs: bool) -> None:
        (self.directory / ELSEWHERE / str(server.vm.id)).rename(self.node.disk(server.vm.id).parent)
        server.state = "poweroff"
        if runs:
            server.written += 1
            server.kept = server.written
            self.node.replace_disk(server.vm.id, ROOT, server.written)

    def write_to(self, server: Server) -> None:
        server.written += 1
        if server.kept >= 0:
            server.kept = server.written
        self.node.engine.content[name(server.vm.id)] = server.written

    def revert_disk(self, server: Server, number: int, content: int) -> None:
        """Let a disk of a VM that is off or suspended have an earlier content, where the driver supports that."""

    def take_state(self, server: Server, state: str) -> None:
        """Do what oned does when monitoring finds a VM in a state."""
        waits = server.stuck
        if waits:
            if (state, waits.done) in (("RUNNING", "running"), ("POWEROFF", "poweroff")) and waits.before != waits.done:
                self.proceed(server, waits, done=True)
        elif state == "RUNNING" and server.state in ("poweroff", "suspended", "unknown"):
            server.state = "running"
        elif server.state in ("running", "unknown"):
            server.state = {"POWEROFF": "poweroff", "SUSPENDED": "suspended"}.get(state, "running")

    def take_name(self, taken: str) -> None:
        """Let a container that OpenNebula did not make have a VM's name."""
        self.foreign.add(taken)
        self.node.engine.specs[taken] = ContainerSpec(taken, "", Cpu(1), Memory(MIB), RootDisk(""))
        self.node.engine.statuses[taken], self.node.engine.content[taken] = Status.RUNNING, 0

    def clear_marks(self) -> None:
        for path in self.marks:
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            elif path.is_symlink() or (path.exists() and path.read_text() == "another-node"):
                path.unlink()
        self.marks.clear()

    @invariant()
    def holds(self) -> None:
        for number, server in self.servers.items():
            assert server.state == ELSEWHERE or self.node.content(number) >= server.kept, (
                f"VM {number} ({server.state}) wrote {server.kept}, and the node has {self.node.content(number)}")
        for taken in self.foreign:
            assert taken in self.node.engine.specs, f"{taken}, which is not OpenNebula's, is gone"
        assert self.victim.read_text() == "of the host", "a link of a tenant's was followed"
        users: dict[str, str] = {}
        records = self.node.store.records()
        for own, spec in self.node.engine.specs.items():
            if self.node.engine.statuses[own] is Status.STOPPED:
                continue  # its configuration is made anew when it starts
            for grant in grants_of(spec.parts):
                device, owner = grant.device.id, base(own)
                assert users.setdefault(device, owner) == owner, f"{users[device]} and {owner} have {device}"
                record = records.get(device)
                assert record and record.consumer.container == owner, f"{own} has {device}: {record}"

    def settle(self) -> None:
        """Let all repairs come."""
        self.node.devices = dict(self.devices)
        self.clear_marks()
        for _ in range(3):
            result, printed = outcome(self.node, (), self.node.monitor)
            assert result == "done", f"monitoring failed: {printed}"

    def teardown(self) -> None:
        try:
            self.settle()
            for number in self.having(ELSEWHERE):
                self.bring_back(self.servers[number], False)
            self.holds()
            for number, server in list(self.servers.items()):
                if server.state == "running" and server.stuck is None:
                    server.kept = -1
                    self.act(server, ACTIONS["terminate hard"])
                if number in self.servers:
                    self.recover_all(self.servers[number].vm)
            self.settle()
            for taken in self.foreign:
                self.node.engine.delete(taken)
            self.foreign.clear()
            self.node.administer()
            self.settle()
            for what, found in self.node.left().items():
                assert not found, f"{what} are left: {found}"
        finally:
            self._stack.close()

    def recover_all(self, vm: Vm) -> None:
        if vm.deploy_id:
            outcome(self.node, (), lambda: self.node.act(
                Call("cancel", {}, vm.id, "host", vm._replace(lcm_state=CLEANUP_DELETE))))
        self.delete_disks(vm.id)


def base(container: str) -> str:
    """Return the name of the VM's container that a revert put this one aside for, or its own."""
    return re.sub("-(old|anew)$", "", container)


def volatile(number: int) -> Disk:
    return Disk(number, "FS", "raw", None, 4 * MIB, False, False, False, "shared")
