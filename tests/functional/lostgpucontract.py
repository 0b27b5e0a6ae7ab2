# SPDX-License-Identifier: Apache-2.0
"""A GPU that leaves the host while a VM of OpenNebula has it: the same lines for every driver.

A test case mixes this in beside its driver's own. Import the module, not its class.
"""

from typing import Any

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.states import State
from containerhost.allocation.store import AllocationStore
from containerhost.engines.contract import Status
from containerhost.inventory.scan import HostView
from containerhost.privileged import Privileged
from tests.fakehost.control import FakeHostControl
from tests.functional_one.vms import Machine


class LostGpuContract:
    """Beside a driver's test case, which has ``gpus``, ``deployed``, ``ok``, ``refused``, ``inside`` and ``status``."""

    def attached(self: Any, machine: Machine) -> Any:
        """Return what the container has attached, apart from its limits."""
        raise NotImplementedError

    def assert_limited(self: Any, machine: Machine, memory: int) -> None:
        """:param memory: bytes; half a CPU is expected beside it"""
        raise NotImplementedError

    def test_a_gpu_that_left_the_host_keeps_nothing_else_from_changing(self: Any) -> None:
        control = FakeHostControl.from_environment()
        machine = self.deployed(Machine(devices=(self.gpus[0], self.gpus[1]), nics=(0, 1)))
        address = self.gpus[1].id
        control.remove(address)
        try:
            before = self.attached(machine)
            self.ok("detach_nic", machine.changed(attach="nic"), machine.mac(1))
            self.assertNotEqual(before, after := self.attached(machine))
            self.ok("resize", machine.changed(memory=192, cpu="0.5"))
            self.assertEqual(after, self.attached(machine))
            self.assert_limited(machine, 192 << 20)
            self.ok("attach_nic", machine.changed(nics=(0, 2), attach="nic"), machine.mac(2), "-", "-", "dummy",
                    "one-1-2")
            more = machine.changed(devices=(self.gpus[1], self.gpus[0]), attach="pci")
            self.ok("detach_nic", more, machine.mac(9))
            self.assertIn("No such file", self.inside(machine, "ls", "/dev/nvidia0"))
            self.refused(address, "attach_nic", more, machine.mac(9), "-", "-", "dummy", "one-1-9")
            self.refused(address, "snapshot_revert", machine, self.ok("snapshot_create", machine, "0").strip())
            self.assertEqual(Status.RUNNING, self.status(machine))
        finally:
            control.restore(address)

    def test_gpu_that_was_detached_off_the_bus_is_seen_by_its_next_vm_alone(self: Any) -> None:
        control, store = FakeHostControl.from_environment(), AllocationStore(self.node.owners)
        machine, address = self.deployed(Machine(devices=(self.gpus[0], self.gpus[1]))), self.gpus[1].id
        control.set_fallen(address)
        try:
            self.ok("detach_nic", machine.changed(attach="pci"), machine.mac(9))
            self.assertEqual(State.BLOCKED, store.records()[address].state)
        finally:
            control.set_fallen(address, False)
        DeviceAllocator(store, HostView, Privileged()).repair.clean(address)
        other = self.deployed(Machine(2, devices=(self.gpus[1],)))
        self.assertEqual({address: "one-2", self.gpus[0].id: "one-1"},
                         {name: record.consumer.container for name, record in store.records().items()})
        for vm, own, foreign in ((machine, 0, 1), (other, 1, 0)):
            self.assertIn("No such file", self.inside(vm, "ls", f"/dev/nvidia{foreign}"))
            self.assertEqual(f"/dev/nvidia{own}", self.inside(vm, "ls", f"/dev/nvidia{own}").strip())
