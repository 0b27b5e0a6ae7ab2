# SPDX-License-Identifier: Apache-2.0
"""Test that VMs of OpenNebula are told of their resources, whatever they opted in to: the same on LXD and on Docker."""

import json
from typing import Any

from containerhost.guest import resources
from containerhost.guest.guestfiles import GuestFiles
from containerhost.guest.guestnotice import FAULTS
from containerhost.inventory.taints import TaintFile
from containerhost.linux.sysfs import Host
from containerhost.privileged import Privileged
from tests.conformance.engine.elastic import FOLLOW
from tests.functional_one.vms import Machine
from tests.waiting import await_that

LISTEN = "cd /run/containerhost; echo '{\"generation\": 1000}' > ack.json"
# Records its acknowledgements.
KEEP = FOLLOW.replace("echo", "cat resources.json >> /announced; echo", 1)


class NoticeContract:
    """A test case of either driver has the rest."""

    def setUp(self) -> None:
        super().setUp()  # type: ignore[misc]
        self.files = GuestFiles(self.engine.pid, Privileged())  # type: ignore[attr-defined]

    def script(self: Any, machine: Machine, script: str) -> None:
        self.engine.execute(machine.name, ["sh", "-c", f"({script}) > /dev/null 2>&1 &"], b"", timeout=60)

    def label(self: Any, machine: Machine) -> dict[str, Any]:
        return json.loads(self.engine.container(machine.name).labels[resources.LABEL])

    def assert_told(self: Any, machine: Machine, *devices: str) -> int:
        """:returns: the generation"""
        told = json.loads(self.files.read(machine.name, resources.FILE))
        self.assertEqual(self.label(machine), told)
        self.assertEqual((machine.vcpu, machine.memory << 20, list(devices), None),
                         (told["cpus"]["count"], told["memory"], [device["id"] for device in told["devices"]],
                          told["announced"]))
        return int(told["generation"])

    def faults(self: Any, machine: Machine) -> list[str]:
        return list(json.loads(self.files.read(machine.name, FAULTS))["faults"])

    def announced(self: Any, machine: Machine) -> list[dict[str, Any]]:
        lines = self.engine.execute(machine.name, ["cat", "/announced"], b"", timeout=60).stdout.decode().splitlines()
        return [coming for line in lines if (coming := json.loads(line)["announced"])]

    def test_vm_is_told_of_each_resize_and_asked_before_it_shrinks(self: Any) -> None:
        machine = self.deployed(Machine(cpu="0.5", vcpu=2, memory=192))
        self.ok("resize", machine.changed(memory=256))
        before, pid = self.assert_told(machine.changed(memory=256)), self.pid(machine)
        self.script(machine, KEEP)
        await_that(lambda: self.files.read(machine.name, resources.ACKNOWLEDGED), "the guest listens")
        smaller = machine.changed(vcpu=1, memory=128)
        self.ok("resize", smaller)
        self.assertEqual((before + 1, pid), (self.assert_told(smaller), self.pid(machine)))
        self.assertEqual({(before + 1, 1, 128 << 20)}, {
            (coming["generation"], coming["cpus"]["count"], coming["memory"]) for coming in self.announced(machine)})

    def test_vm_is_told_of_devices_that_come_and_asked_before_they_go(self: Any) -> None:
        function, gpu = self.vfs[0], self.gpus[0]
        machine = self.deployed(Machine(devices=(function,)))
        more = machine.changed(devices=(function, gpu), attach="pci")
        for _ in range(2):
            self.ok("attach_nic", more, machine.mac(9), "-", "-", "dummy", "one-1-9")
        before = self.assert_told(machine, function.id, gpu.id)
        self.script(machine, KEEP)
        await_that(lambda: self.files.read(machine.name, resources.ACKNOWLEDGED), "the guest listens")
        for _ in range(2):
            self.ok("detach_nic", more, machine.mac(9))
        self.assertEqual(before + 1, self.assert_told(machine, function.id))
        self.assertEqual([[function.id]], [list(ids) for ids in {tuple(device["id"] for device in coming["devices"])
                                                                 for coming in self.announced(machine)}])

    def test_announcement_of_a_resize_that_is_refused_is_withdrawn(self: Any) -> None:
        machine = self.deployed(Machine(memory=192))
        self.ok("resize", machine.changed(memory=256))
        told = self.files.read(machine.name, resources.FILE)
        self.engine.execute(machine.name, ["sh", "-c", LISTEN], b"", timeout=60)
        self.script(machine, "head -c 120000000 /dev/zero | tail -c 100000000 | sleep 600")
        await_that(lambda: self.engine.metrics(machine.name).memory > 90 << 20, "it uses its memory")
        self.refused("of memory", "resize", machine.changed(memory=64))
        self.assertEqual(told, self.files.read(machine.name, resources.FILE))

    def test_monitoring_tells_a_vm_what_is_wrong_with_its_devices(self: Any) -> None:
        machine, gpu = self.deployed(Machine(devices=(self.gpus[0],))), self.gpus[0]
        self.assertEqual(0, self.node.probe("vm/monitor").status)
        self.assertIsNone(self.files.read(machine.name, FAULTS))
        taints = TaintFile(Host())
        self.addCleanup(taints.untaint, gpu.id)
        taints.taint(gpu.id, "fan is replaced")
        self.assertEqual(0, self.node.probe("vm/monitor").status)
        self.assertEqual([f"{gpu.id}: tainted by the operator: fan is replaced"], self.faults(machine))
        taints.untaint(gpu.id)
        self.assertEqual(0, self.node.probe("vm/monitor").status)
        self.assertEqual([], self.faults(machine))
