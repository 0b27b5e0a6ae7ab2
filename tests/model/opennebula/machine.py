# SPDX-License-Identifier: Apache-2.0
"""Let users, administrators, tenants and the host do anything to the VMs of one node, in any order."""

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from containerhost.engines.contract import Status
from onedriver.actions import Call
from onedriver.node.names import name
from onedriver.pciaddress import from_device_id
from onedriver.vm import MIB, Nic, Pci
from tests.model.opennebula.engine import FAULTS
from tests.model.opennebula.node import outcome
from tests.model.opennebula.transitions import ACTIONS, CLEANUP_DELETE, CLEANUP_RECREATE, hotplug
from tests.model.opennebula.world import (
    ELSEWHERE,
    ENDS,
    FAILURE,
    FURTHER,
    GPUS,
    NOTHING,
    ROOT,
    SUCCESS,
    UNDEPLOYS,
    VOLATILE,
    Server,
    World,
    volatile,
)

SERVERS = 3  # at a time
VM_LINE = re.compile(r'ID="?(?P<id>[0-9]+)"?.*STATE="?(?P<state>[A-Z]+)"?')
# What a user may ask for: of a VM that does not run; that it be off; others.
RESUMES = [asked for asked, transition in ACTIONS.items() if transition.before != "running"]
HALTS = [asked for asked, transition in ACTIONS.items() if transition.before == "running" and transition.done in ENDS]
OTHERS = [asked for asked in ACTIONS if asked not in RESUMES + HALTS]
faults = st.lists(st.tuples(st.integers(0, 30), st.sampled_from(FAULTS)), max_size=2)
gpu = st.sampled_from(sorted(GPUS))
lost = st.sampled_from([FAILURE, NOTHING, SUCCESS])


class OpenNebula(World):
    @precondition(lambda self: len(self.servers) < SERVERS)
    @rule(data=st.data(), persistent=st.booleans(), stranger=st.integers(0, 9), plan=faults, lost=lost)
    def create(self, data: Any, persistent: bool, stranger: int, plan: Any, lost: str) -> None:
        wanted = data.draw(st.lists(st.sampled_from(self.free()), max_size=2, unique=True), "devices") \
            if self.free() else []
        if stranger == 9:  # seldom: such a VM never runs
            self.take_name(name(self.last + 1))
        self.act(self.described(persistent, wanted), ACTIONS["retry"], plan=plan, lost=lost)

    @precondition(lambda self: self._possible(RESUMES))
    @rule(data=st.data(), reverted=st.none() | st.sampled_from([ROOT, VOLATILE]), plan=faults, lost=lost)
    def resume(self, data: Any, reverted: int | None, plan: Any, lost: str) -> None:
        """Start a VM, one that is off or suspended perhaps after a disk was reverted."""
        asked, vm_id = data.draw(st.sampled_from(self._possible(RESUMES)), "action")
        if reverted is not None and ACTIONS[asked].before in ("poweroff", "suspended"):
            saved = max(0, self.node.content_of_disk(vm_id))
            self.revert_disk(self.servers[vm_id], reverted, data.draw(st.integers(0, saved), "content"))
        self.ask(self.servers[vm_id], ACTIONS[asked], plan, lost)

    @precondition(lambda self: self._possible(HALTS))
    @rule(data=st.data(), plan=faults, lost=lost)
    def halt(self, data: Any, plan: Any, lost: str) -> None:
        asked, vm_id = data.draw(st.sampled_from(self._possible(HALTS)), "action")
        self.ask(self.servers[vm_id], ACTIONS[asked], plan, lost)

    @precondition(lambda self: self._possible(OTHERS))
    @rule(data=st.data(), plan=faults, lost=lost)
    def transition(self, data: Any, plan: Any, lost: str) -> None:
        asked, vm_id = data.draw(st.sampled_from(self._possible(OTHERS)), "action")
        self.ask(self.servers[vm_id], ACTIONS[asked], plan, lost)

    def _possible(self, actions: Iterable[str]) -> list[tuple[str, int]]:
        return [(asked, number) for asked in actions for number in self.having(ACTIONS[asked].before)]

    @precondition(lambda self: self.having(*ENDS, "epilog failure"))
    @rule(data=st.data(), plan=faults)
    def terminate_off(self, data: Any, plan: Any) -> None:
        """End a VM that is off: oned calls no action."""
        self.delete_disks(self.drawn(data, self.having(*ENDS, "epilog failure")).vm.id, plan)

    @precondition(lambda self: self.having(*UNDEPLOYS, "epilog failure"))
    @rule(data=st.data(), plan=faults)
    def undeploy_off(self, data: Any, plan: Any) -> None:
        server = self.drawn(data, self.having(*UNDEPLOYS, "epilog failure"))
        server.state = "undeployed"
        self.leave(server, plan)

    @precondition(lambda self: self.having("poweroff"))
    @rule(data=st.data(), plan=faults)
    def migrate_off(self, data: Any, plan: Any) -> None:
        """Move a VM that is off to another node: oned calls no action."""
        server = self.drawn(data, self.having("poweroff"))
        self.clear_marks()  # which would move, too
        self.leave(server, plan)
        if server.state == "poweroff":
            self.node.move(server.vm.id, self.directory / ELSEWHERE)
            server.state = ELSEWHERE

    @precondition(lambda self: self.having(ELSEWHERE))
    @rule(data=st.data(), runs=st.booleans())
    def come_back(self, data: Any, runs: bool) -> None:
        """Move a VM back that is off again, and may have run meanwhile."""
        self.bring_back(self.drawn(data, self.having(ELSEWHERE)), runs)

    def _here(self) -> list[int]:
        return [number for number, server in self.servers.items() if server.state != ELSEWHERE]

    @precondition(lambda self: self._here())
    @rule(data=st.data(), again=st.booleans(), plan=faults)
    def recover_delete(self, data: Any, again: bool, plan: Any) -> None:
        """Delete or recreate a VM in whatever state: a step that fails keeps oned from none of the others."""
        server = self.drawn(data, self._here())
        vm, server.kept, server.stuck = server.vm, -1, None
        if vm.deploy_id:  # oned cancels no VM that it has no name of
            lcm = CLEANUP_RECREATE if again else CLEANUP_DELETE
            result, _ = outcome(self.node, plan, lambda: self.node.act(
                Call("cancel", {}, vm.id, "host", vm._replace(lcm_state=lcm))))
            self.count(f"cancel {lcm}: {result}")
        self.gone.add(vm.id)
        self.delete_disks(vm.id)
        if again:
            self.servers[vm.id] = Server(vm._replace(deploy_id="", snapshots=frozenset()))
            self.gone.discard(vm.id)
            self.node.transfer(vm)

    @precondition(lambda self: any(server.stuck for server in self.servers.values()))
    @rule(data=st.data(), done=st.booleans())
    def recover(self, data: Any, done: bool) -> None:
        """Tell oned, rightly or not, how an action ended whose answer was lost."""
        server = self.drawn(data, [number for number, server in self.servers.items() if server.stuck])
        assert server.stuck
        self.proceed(server, server.stuck, done=done)

    @precondition(lambda self: self.having("running"))
    @rule(data=st.data(), device=gpu, plan=faults, lost=lost)
    def attach_device(self, data: Any, device: str, plan: Any, lost: str) -> None:
        server = self.drawn(data, self.having("running"))
        if device not in self.free():
            return
        number = max((pci.id or 0 for pci in server.vm.pcis), default=-1) + 1
        new = Pci(number, from_device_id(device), None, None, None, nic_id=10 + number, attach=True)
        self.act(server, hotplug("attach_nic"), server.vm._replace(pcis=(*server.vm.pcis, new)), plan, lost)
        if server.stuck or self.done:
            server.vm = server.vm._replace(pcis=(*server.vm.pcis, new._replace(attach=False)))

    @precondition(lambda self: [number for number in self.having("running") if self.servers[number].vm.pcis])
    @rule(data=st.data(), plan=faults, lost=lost)
    def detach_device(self, data: Any, plan: Any, lost: str) -> None:
        server = self.drawn(data, [number for number in self.having("running") if self.servers[number].vm.pcis])
        gone = data.draw(st.sampled_from(server.vm.pcis), "device")
        rest = tuple(pci for pci in server.vm.pcis if pci != gone)
        described = server.vm._replace(pcis=(*rest, gone._replace(attach=True)))
        self.act(server, hotplug("detach_nic"), described, plan, lost)
        if self.done:
            server.vm = server.vm._replace(pcis=rest)

    @precondition(lambda self: self.having("poweroff"))
    @rule(data=st.data(), device=st.none() | gpu)
    def change_devices(self, data: Any, device: str | None) -> None:
        """Attach or detach a device of a VM that is off: oned calls no action."""
        server = self.drawn(data, self.having("poweroff"))
        given = [pci.chosen().device_id for pci in server.vm.pcis]
        if device is None:
            given = given[1:]
        elif device in self.free():
            given.append(device)
        server.vm = server.vm._replace(pcis=self.devices_of(given))

    @precondition(lambda self: self.having("running"))
    @rule(data=st.data(), size=st.sampled_from([256, 512, 1024]), plan=faults, lost=lost)
    def resize(self, data: Any, size: int, plan: Any, lost: str) -> None:
        server = self.drawn(data, self.having("running"))
        wanted = server.vm._replace(memory=size * MIB)
        self.act(server, hotplug("resize"), wanted, plan, lost)
        if self.done:
            server.vm = server.vm._replace(memory=wanted.memory)

    @precondition(lambda self: self.having("running"))
    @rule(data=st.data(), plan=faults, lost=lost)
    def create_snapshot(self, data: Any, plan: Any, lost: str) -> None:
        server = self.drawn(data, self.having("running"))
        number = max(server.snapshots, default=-1) + 1
        content = self.node.content(server.vm.id)
        made = self.act(server, hotplug("snapshot_create"), None, plan, lost, snapshot=str(number))
        if made:
            server.snapshots[number] = content
            server.vm = server.vm._replace(snapshots=server.vm.snapshots | {made})

    def _with_snapshots(self) -> list[int]:
        return [number for number in self.having("running") if self.servers[number].snapshots]

    @precondition(lambda self: self._with_snapshots())
    @rule(data=st.data(), revert=st.booleans(), plan=faults, lost=lost)
    def use_snapshot(self, data: Any, revert: bool, plan: Any, lost: str) -> None:
        server = self.drawn(data, self._with_snapshots())
        number = data.draw(st.sampled_from(sorted(server.snapshots)), "snapshot")
        action = "snapshot_revert" if revert else "snapshot_delete"
        if revert:
            server.kept = min(server.kept, server.snapshots[number])
        self.act(server, hotplug(action), None, plan, lost, snapshot=f"snap-{number}")
        if not revert and self.done:
            del server.snapshots[number]
            server.vm = server.vm._replace(snapshots=server.vm.snapshots - {f"snap-{number}"})

    @precondition(lambda self: self.having("running"))
    @rule(data=st.data(), plan=faults, lost=lost)
    def change_nic(self, data: Any, plan: Any, lost: str) -> None:
        """Attach a second NIC, or detach it."""
        server = self.drawn(data, self.having("running"))
        first, *others = server.vm.nics
        if others:
            described = (first, others[0]._replace(attach=True))
            self.act(server, hotplug("detach_nic"), server.vm._replace(nics=described), plan, lost)
            if self.done:
                server.vm = server.vm._replace(nics=(first,))
            return
        new = Nic(1, "02:00:0a:63:00:0b", "br0", f"{name(server.vm.id)}-1")
        self.act(server, hotplug("attach_nic"), server.vm._replace(nics=(first, new._replace(attach=True))), plan, lost)
        if self.done:
            server.vm = server.vm._replace(nics=(first, new))

    @precondition(lambda self: self.having("running"))
    @rule(data=st.data(), plan=faults, lost=lost)
    def change_disk(self, data: Any, plan: Any, lost: str) -> None:
        """Attach a further disk, or detach it: the transfer driver makes its file before, and deletes it afterwards."""
        server = self.drawn(data, self.having("running"))
        disk, others = volatile(FURTHER), tuple(disk for disk in server.vm.disks if disk.id != FURTHER)
        described = server.vm._replace(disks=(*others, disk._replace(attach=True)))
        attached = disk in server.vm.disks
        if not attached:
            self.node.make_disk(server.vm.id, FURTHER)
        self.act(server, hotplug("detach_disk" if attached else "attach_disk"), described, plan, lost)
        if self.done is not attached:
            server.vm = server.vm._replace(disks=(*others, disk))
        elif server.stuck is None:
            server.vm = server.vm._replace(disks=others)
            self.node.disk(server.vm.id, FURTHER).unlink()

    @precondition(lambda self: self.having("running"))
    @rule(data=st.data(), disk=st.sampled_from([ROOT, VOLATILE]), plan=faults, lost=lost)
    def resize_disk(self, data: Any, disk: int, plan: Any, lost: str) -> None:
        server = self.drawn(data, self.having("running"))
        size = max(each.size or 0 for each in server.vm.disks if each.id == disk) // MIB + 1
        self.act(server, hotplug("resize_disk"), None, plan, lost, disk_id=str(disk), size=str(size))
        if self.done:
            server.vm = server.vm._replace(disks=tuple(
                each._replace(size=size * MIB) if each.id == disk else each for each in server.vm.disks))

    def _containers_that_run(self) -> list[int]:
        return [number for number in self.servers if name(number) not in self.foreign
                and self.node.engine.statuses.get(name(number)) is Status.RUNNING]

    @precondition(lambda self: self._containers_that_run())
    @rule(data=st.data())
    def write(self, data: Any) -> None:
        self.write_to(self.drawn(data, self._containers_that_run()))

    @precondition(lambda self: self._containers_that_run())
    @rule(data=st.data())
    def end_by_itself(self, data: Any) -> None:
        self.node.engine.statuses[name(self.drawn(data, self._containers_that_run()).vm.id)] = Status.STOPPED

    @rule(plan=faults)
    def monitor(self, plan: Any) -> None:
        result, printed = outcome(self.node, plan, self.node.monitor)
        self.count(f"monitor: {result}")
        if result != "done":
            assert self.node.process.met, f"monitoring failed: {printed}"
            return
        states = {int(found["id"]): found["state"] for line in printed.splitlines() if (found := VM_LINE.search(line))}
        for number, server in self.servers.items():
            self.take_state(server, states.get(number, "POWEROFF"))

    @rule()
    def reboot_host(self) -> None:
        self.node.restart()
        for server in self.servers.values():
            if server.state == "running" and server.stuck is None:
                server.state = "unknown"

    @rule(device=gpu, state=st.sampled_from(["well", "sick", "gone"]))
    def change_device(self, device: str, state: str) -> None:
        self.node.devices.pop(device, None)
        if state != "gone":
            health = ("it fell off the bus",) if state == "sick" else ()
            self.node.devices[device] = dataclasses.replace(GPUS[device], health=health)

    @precondition(lambda self: self._here())
    @rule(data=st.data(), how=st.sampled_from(["directory", "link", "text", "nothing"]))
    def obstruct(self, data: Any, how: str) -> None:
        """Put something, or nothing again, in the place of a mark of the driver's in the VM's directory: that is its
        owner's."""
        self.clear_marks()
        path = self.node.cleared(self.drawn(data, self._here()).vm.id)
        if how == "nothing" or path is None or not path.parent.is_dir():
            return
        if how == "directory":
            path.mkdir()
        elif how == "link":
            path.symlink_to(self.victim)
        else:
            path.write_text("another-node")
        self.marks.append(path)
