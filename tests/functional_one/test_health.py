# SPDX-License-Identifier: Apache-2.0
"""Sick devices, and devices that are interrupted on their way into or out of a VM."""

import base64
import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

from click.testing import CliRunner

from containerhost.allocation.store import AllocationStore
from containerhost.devices.model import Device, NodeUse
from containerhost.engines.contract import Status
from containerhost.operator.cli import main
from onedriver.pciaddress import from_device_id
from tests import levels
from tests.fakehost.control import FakeHostControl
from tests.functional import kmsg, leftdevicescontract
from tests.functional.holder import Holder
from tests.functional_one.test_actions import ActionsCase
from tests.functional_one.vms import Machine
from tests.waiting import await_that

MOMENTS = (0.03, 0.06, 0.1, 0.14, 0.2, 0.3, 0.5, 1.0)  # s after which an action is killed
ATTACH = ("02:00:0a:63:01:09", "-", "-", "dummy", "one-1-9")


class HealthCase(ActionsCase):
    def setUp(self) -> None:
        super().setUp()
        self.control = FakeHostControl.from_environment()
        self.addCleanup(self.control.say, kmsg.LOADED)

    def reported(self) -> set[str]:
        """Return the addresses of the devices that are reported to the core."""
        return set(re.findall(r'PCI=\[ ADDRESS="([^"]*)"', self.node.probe("host/system").out))

    def faults(self, machine: Machine) -> str:
        line = next(line for line in self.node.probe("vm/monitor").out.splitlines() if f'ID="{machine.id}"' in line)
        told = base64.b64decode(line.partition('MONITOR="')[2].partition('"')[0]).decode()
        return "".join(line for line in told.splitlines() if line.startswith("DEVICE_FAULTS="))

    def holders(self) -> set[str]:
        return set(AllocationStore(self.node.owners).records())


class SickTest(HealthCase):
    def test_a_sick_one_is_not_reported_unless_a_vm_has_it(self) -> None:
        held, free = self.gpus
        addresses = [from_device_id(gpu.id).address for gpu in (held, free)]
        machine = self.deployed(Machine(devices=(held,)))
        everything = self.reported()
        self.assertEqual("", self.faults(machine))
        for gpu in self.gpus:
            self.control.say(kmsg.xid(gpu.id, 48))
        self.assertEqual(everything - {addresses[1]}, self.reported())
        self.assertIn(f"{held.id}: Xid 48", self.faults(machine))
        self.refused("Xid 48", "attach_nic", machine.changed(devices=(held, free), attach="pci"), *ATTACH)
        self.assertEqual({held.id}, self.holders())
        self.ok("reset", machine)
        self.assertEqual("", self.faults(machine))
        self.assertEqual({held.id}, self.holders())
        done = CliRunner().invoke(main, ["scrub", free.id, "--owners", str(self.node.owners)])
        self.assertEqual(f"{free.id} is clean and free: it was reset\n", done.output)
        self.assertEqual(everything, self.reported())

    def test_one_that_left_the_host_is_detached(self) -> None:
        gpu = self.gpus[0]
        machine = self.deployed()
        more = machine.changed(devices=(gpu,), attach="pci")
        self.ok("attach_nic", more, *ATTACH)
        self.control.remove(gpu.address)
        try:
            self.ok("detach_nic", more, ATTACH[0])
            self.assertIn("this host has no device", AllocationStore(self.node.owners).records()[gpu.id].blocked or "")
            self.ok("detach_nic", more, ATTACH[0])
        finally:
            self.control.restore(gpu.address)
        self.ok("reset", machine)
        self.assertEqual(Status.RUNNING, self.engine.container(machine.name).status)

    def test_one_in_use_is_not_detached(self) -> None:
        gpu = self.gpus[0]
        machine = self.deployed()
        more = machine.changed(devices=(gpu,), attach="pci")
        self.ok("attach_nic", more, *ATTACH)
        node = next(node for node in gpu.nodes if node.use is NodeUse.OWN and "nvidia" in node.path)
        holder = self.useFixture(Holder(node.path, (node.major, node.minor)))
        self.refused(f"device {gpu.id} is in use by process", "detach_nic", more, ATTACH[0])
        self.assertEqual(f"{node.path}\n", self.inside(machine, "ls", node.path))
        self.assertEqual({gpu.id}, self.holders())
        holder.end()
        self.ok("detach_nic", more, ATTACH[0])
        self.assertEqual(set(), self.holders())


@levels.exhaustive("the contract of left devices is the same in functional_onedock",
                   tests=("test_killed_deployment_holds_nothing_without_container",))
class LeftDevicesTest(leftdevicescontract.LeftDevicesContract, ActionsCase):
    pass


@levels.exhaustive("a kill stays; tests/kernel has two at once", tests=(
    "test_the_container_restarts_stops_or_goes_in_the_middle", "test_the_daemon_restarts_in_the_middle",
    "test_the_daemon_dies_before_it_notes_what_it_gave", "test_two_want_one_device_at_once"))
class InterruptedTest(HealthCase):
    def more(self, machine: Machine, device: Device) -> Machine:
        return machine.changed(devices=(self.vfs[0], device), attach="pci")

    def assert_has(self, machine: Machine, *devices: Device) -> None:
        records = AllocationStore(self.node.owners).records()
        self.assertEqual({device.id: None for device in devices},
                         {device: record.blocked for device, record in records.items()})
        self.assertEqual(Status.RUNNING, self.status(machine))

    def test_killed_in_the_middle(self) -> None:
        """An action that was killed may be repeated, and so may its opposite."""
        machine = self.deployed(Machine(devices=(self.vfs[0],)))
        before = self.pid(machine)
        for device in (self.gpus[0], self.vfs[1]):
            more = self.more(machine, device)
            for moment in levels.some("attach_nic killed", MOMENTS, (4, 6)):
                self.killed("attach_nic", more, moment, *ATTACH)
                self.ok("detach_nic", more, ATTACH[0])
                self.assert_has(machine, self.vfs[0])
            for moment in levels.some("detach_nic killed", MOMENTS, (4, 6)):
                self.ok("attach_nic", more, *ATTACH)
                self.killed("detach_nic", more, moment, ATTACH[0])
                self.ok("detach_nic", more, ATTACH[0])
                self.assert_has(machine, self.vfs[0])
        self.assertEqual(before, self.pid(machine))

    def killed(self, action: str, machine: Machine, moment: float, *arguments: str) -> None:
        with self.node.begun(action, machine, *arguments) as process:
            time.sleep(moment)
            os.killpg(process.pid, signal.SIGKILL)

    def test_the_container_restarts_stops_or_goes_in_the_middle(self) -> None:
        for end in ("delete", "stop", "restart"):
            for moment in levels.some(f"container {end}", MOMENTS[1:6:2], (2,)):
                machine = self.deployed(Machine(devices=(self.vfs[0],)))
                more = self.more(machine, self.gpus[0])
                with self.node.begun("attach_nic", more, *ATTACH) as process:
                    time.sleep(moment)
                    self.end(end, machine)
                    process.wait(60)
                if end == "restart":
                    self.ok("detach_nic", more, ATTACH[0])
                    self.assert_has(machine, self.vfs[0])
                self.ok("cancel", machine, lcm=23)
                self.assertEqual(set(), self.holders())

    def test_the_daemon_restarts_in_the_middle(self) -> None:
        machine = self.deployed(Machine(devices=(self.vfs[0],)))
        before = self.pid(machine)
        for device in (self.gpus[0], self.vfs[1]):
            more = self.more(machine, device)
            for action, arguments in (("attach_nic", ATTACH), ("detach_nic", ATTACH[:1])):
                for moment in levels.some(f"daemon {device.id} {action}", MOMENTS[1:6:2], (2,)):
                    if action == "detach_nic":
                        self.ok("attach_nic", more, *ATTACH)
                    with self.node.begun(action, more, *arguments) as process:
                        time.sleep(moment)
                        self.node.lxd.daemon.kill()
                        self.node.lxd.daemon.start()
                        process.wait(60)
                    self.ok("detach_nic", more, ATTACH[0])
                    self.assert_has(machine, self.vfs[0])
        self.assertEqual(before, self.pid(machine))

    def test_the_daemon_dies_before_it_notes_what_it_gave(self) -> None:
        """It does not know afterwards what is in the container; the device goes to no other VM."""
        machine = self.deployed(Machine(devices=(self.vfs[0],)))
        before = self.pid(machine)
        for device in (self.gpus[0], self.vfs[1]):
            for repeated in (True, False):
                more = self.more(machine, device)
                with self.node.begun("attach_nic", more, *ATTACH) as process:
                    self.await_part_of(device, before)
                    self.node.lxd.daemon.kill()
                    process.wait(60)
                    self.node.lxd.daemon.start()
                self.assert_has(machine, self.vfs[0], device)
                if repeated:
                    self.ok("attach_nic", more, *ATTACH)
                self.ok("detach_nic", more, ATTACH[0])
                self.assert_has(machine, self.vfs[0])
                self.assertFalse(self.is_part_inside(device, before))
        self.assertEqual(before, self.pid(machine))

    def await_part_of(self, device: Device, pid: int) -> None:
        await_that(lambda: self.is_part_inside(device, pid), "the device is inside", pause=0.001)

    def is_part_inside(self, device: Device, pid: int) -> bool:
        interfaces = Path(f"/proc/{pid}/net/dev").read_text().count("ib")
        own = [node for node in device.nodes if node.use is NodeUse.OWN]
        return interfaces > 1 or any(Path(f"/proc/{pid}/root{node.path}").exists() for node in own)

    def end(self, how: str, machine: Machine) -> None:
        """End or restart a VM's container as an administrator does, by LXD's own means."""
        if how == "delete":
            self.engine.delete(machine.name)
        elif how == "stop":
            self.engine.stop(machine.name, timeout=20, force=True)
        else:
            self.engine.stop(machine.name, timeout=20, force=True)
            self.engine.start(machine.name)

    def test_two_want_one_device_at_once(self) -> None:
        machines = [self.deployed(), self.deployed(Machine(2))]
        results = []

        def attach(machine: Machine) -> None:
            more = machine.changed(devices=(self.gpus[0],), attach="pci")
            results.append(self.node.act("attach_nic", more, *ATTACH).status)

        threads = [threading.Thread(target=attach, args=(machine,)) for machine in machines]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(1, len([status for status in results if status == 0]), results)
        (record,) = AllocationStore(self.node.owners).records().values()
        there = [subprocess.run(["nsenter", "-t", str(self.pid(machine)), "-m", "ls", "/dev/nvidia0"],
                                capture_output=True, check=False).returncode == 0 for machine in machines]
        self.assertEqual([machine.name == record.consumer.container for machine in machines], there)
