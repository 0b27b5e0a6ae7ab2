# SPDX-License-Identifier: Apache-2.0
"""A GPU that leaves the host while a VM of OpenNebula has it: the same lines for every driver.

A test case mixes this in beside its driver's own. Import the module, not its class.
"""

from typing import Any

from containerhost.engines.contract import Status
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
