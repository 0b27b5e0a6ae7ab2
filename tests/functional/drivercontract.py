# SPDX-License-Identifier: Apache-2.0
"""Actions of oned that every driver of OpenNebula does in the same way, with their test cases.

A test case mixes these in beside its driver's own. Import the module, not its classes.
"""

import shutil
from typing import Any

from containerhost.allocation.store import AllocationStore
from containerhost.devices.model import Device
from containerhost.engines.contract import Status
from tests.functional_one.node import Result
from tests.functional_one.vms import Machine

POWEROFF, SUSPEND, CLEANUP, BOOT, RESTORE = 18, 6, 23, 2, 21
TIMEOUT = 60  # s
NVIDIA = "ls /dev/nvidia0 /dev/nvidia1 2>/dev/null"


class Actions:
    """Beside a test case with a ``node`` and an ``engine``."""

    def ok(self: Any, action: str, machine: Machine, *arguments: str, lcm: int = 3) -> str:
        result = self.node.act(action, machine, *arguments, lcm=lcm)
        self.assertEqual((0, ""), (result.status, result.reason), result.err)
        return result.out

    def refused(self: Any, words: str, action: str, machine: Machine, *arguments: str, lcm: int = 3) -> Result:
        result = self.node.act(action, machine, *arguments, lcm=lcm)
        self.assertNotEqual(0, result.status, result.out)
        self.assertIn(words, result.reason)
        self.assertTrue(result.reason.endswith("."), result.reason)
        return result

    def deployed(self: Any, machine: Machine | None = None, **disk: str) -> Machine:
        machine = machine or Machine()
        self.node.give_disk(machine, **disk)
        self.assertEqual(f"{machine.name}\n", self.ok("deploy", machine, lcm=BOOT))
        self.addCleanup(self.ok, "cancel", machine, lcm=CLEANUP)
        return machine

    def status(self: Any, machine: Machine) -> Status:
        return self.engine.container(machine.name).status


class LifeContract:
    def test_suspend_and_resume_keep_its_processes(self: Any) -> None:
        machine = self.deployed()
        before = self.pid(machine)
        for _ in range(2):
            self.ok("save", machine, lcm=SUSPEND)
        self.assertEqual(Status.FROZEN, self.status(machine))
        for _ in range(2):
            self.ok("restore", machine, lcm=RESTORE)
        self.assertEqual((Status.RUNNING, before), (self.status(machine), self.pid(machine)))
        self.ok("save", machine, lcm=SUSPEND)
        self.engine.stop("one-1", timeout=TIMEOUT, force=True)
        self.refused("its memory is lost", "restore", machine, lcm=RESTORE)

    def test_cancel_works_from_nothing_and_twice(self: Any) -> None:
        self.ok("cancel", Machine(), lcm=CLEANUP)
        machine = self.deployed()
        for _ in range(2):
            self.ok("cancel", machine, lcm=CLEANUP)


class DevicesContract:
    def test_exactly_the_chosen_devices(self: Any) -> None:
        machine = self.deployed(Machine(devices=(self.gpus[1], self.vfs[0])))
        self.assertEqual("/dev/nvidia1\n", self.inside(machine, "sh", "-c", NVIDIA))
        other = Machine(2, devices=(self.gpus[1],))
        self.node.give_disk(other)
        self.refused(f"{self.engine.name}/one-1 ({self.node.driver} 1) holds", "deploy", other, lcm=BOOT)
        self.assertFalse(self.engine.exists("one-2"))

    def test_a_gpu_and_a_function_come_and_go_while_it_runs(self: Any) -> None:
        machine = self.deployed(Machine(devices=(self.vfs[0],)))
        before = self.pid(machine)
        for device, sign in ((self.gpus[0], "/dev/nvidia0"), (self.vfs[1], "/sys/class/net/ib12")):
            more = machine.changed(devices=(self.vfs[0], device), attach="pci")
            for _ in range(2):
                self.ok("attach_nic", more, machine.mac(9), "-", "-", "dummy", "one-1-9")
            self.assertEqual(f"{sign}\n", self.inside(machine, "ls", "-d", sign))
            self.check_attached(machine, device)
            for _ in range(2):
                self.ok("detach_nic", more, machine.mac(9))
            self.assertIn("No such file", self.inside(machine, "ls", "-d", sign))
            self.assertEqual({self.vfs[0].id}, set(AllocationStore(self.node.owners).records()))
        self.assertEqual(before, self.pid(machine))
        self.assertIn("ibp0", self.inside(machine, "cat", "/proc/net/dev"))

    def check_attached(self, machine: Machine, device: Device) -> None:
        """Check what the driver's engine alone has to stand while a device is attached."""

    def test_an_attachment_that_cannot_be_changes_nothing(self: Any) -> None:
        machine = self.deployed()
        self.deployed(Machine(2, devices=(self.gpus[0],)))
        arguments = (machine.mac(9), "-", "-", "dummy", "one-1-9")
        taken = machine.changed(devices=(self.gpus[0],), attach="pci")
        self.refused(f"{self.engine.name}/one-2 ({self.node.driver} 2) holds", "attach_nic", taken, *arguments)
        self.refused("0 NICs and PCI devices", "attach_nic", machine, *arguments)
        self.check_refused(machine, arguments)
        self.assertEqual({self.gpus[0].id}, set(AllocationStore(self.node.owners).records()))


class ProbesContract:
    def test_a_new_node_tells_how_much_room_its_datastores_have(self: Any) -> None:
        """Without that oned leaves every VM PENDING."""
        shutil.rmtree(self.node.datastores, ignore_errors=True)
        self.assertRegex(self.node.probe("host/system").out, r'(?m)^DS_LOCATION_FREE_MB="?[1-9][0-9]*"?$')


class RefusalsContract:
    """:cvar absent: an endpoint where no engine is"""

    absent: str

    def test_an_engine_that_is_away_is_told(self: Any) -> None:
        self.node._conf.write_text(f'endpoint = "{self.absent}"\n')
        self.refused(self.absent.removeprefix("unix://"), "reset", Machine())
        self.node._conf.write_text("no_such_option = 1\n")
        self.refused("there is no option no_such_option", "reset", Machine())

    def later_of_the_same_number(self: Any, machine: Machine) -> Machine:
        """Return a VM for which every action on the container of the earlier one is refused, which is off then."""
        later = machine.changed(stime=machine.stime + 1)
        for action in ("deploy", "shutdown", "cancel", "reset", "save"):
            self.refused("belongs to another VM 1", action, later, lcm=BOOT)
        self.ok("cancel", machine, lcm=POWEROFF)
        for action, lcm in (("deploy", BOOT), ("cancel", CLEANUP), ("reset", BOOT)):
            self.refused("belongs to another VM 1", action, later, lcm=lcm)
        return later
