# SPDX-License-Identifier: Apache-2.0
"""Upgrade and downgrade of a node of OpenNebula on which a VM with devices runs.

A test case mixes this in beside its driver's own. Import the module, not its class.
"""

from typing import Any

from containerhost.allocation.store import AllocationStore
from tests.commands import ROOT
from tests.earlier import earlier_code
from tests.functional.drivercontract import BOOT, CLEANUP, NVIDIA, POWEROFF
from tests.functional_one.vms import Machine


class UpgradeContract:
    def test_vm_of_one_release_goes_on_with_another(self: Any) -> None:
        earlier = earlier_code(self)
        for number, (first, second) in enumerate(((earlier, ROOT), (ROOT, earlier)), 1):
            self.node.run_from(first)
            machine = self.deployed(Machine(number, devices=(self.gpus[0], self.vfs[0]), nics=(0,)))
            before = self.pid(machine)
            self.node.run_from(second)
            other = Machine(9, devices=(self.gpus[0],))
            self.node.give_disk(other)
            self.refused(f"({self.node.driver} {number}) holds", "deploy", other, lcm=BOOT)
            more = machine.changed(devices=(*machine.devices, self.vfs[1]), attach="pci")
            self.ok("attach_nic", more, machine.mac(9), "-", "-", "dummy", f"{machine.name}-9")
            self.assertEqual({device.id for device in more.devices}, set(AllocationStore(self.node.owners).records()))
            self.ok("detach_nic", more, machine.mac(9))
            self.assertEqual(before, self.pid(machine))
            self.ok("shutdown", machine, lcm=POWEROFF)
            self.ok("deploy", machine, lcm=BOOT)
            self.assertEqual("/dev/nvidia0\n", self.inside(machine, "sh", "-c", NVIDIA))
            self.ok("cancel", machine, lcm=CLEANUP)
            self.assertEqual({}, AllocationStore(self.node.owners).records())
