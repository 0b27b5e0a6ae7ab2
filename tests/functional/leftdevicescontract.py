# SPDX-License-Identifier: Apache-2.0
"""Devices that a killed action of OpenNebula left: the same lines for every driver.

A test case mixes this in beside its driver's own. Import the module, not its class.
"""

import os
import signal
import time
from typing import Any

from containerhost.allocation.states import State
from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.devices.model import Device
from onedriver.node.vm_ids import consumer
from tests.functional_one.vms import Machine
from tests.waiting import await_that

BOOT, CLEANUP = 2, 23
MOMENTS = (0.3, 0.8, 1.5)  # s after which a deployment is killed
OTHER = {"lxdone": ("onedock", "docker"), "onedock": ("lxdone", "lxd")}


class LeftDevicesContract:
    """Beside a driver's test case, which has ``node``, ``engine``, ``gpus``, ``vfs`` and ``ok``."""

    def left(self: Any, device: Device, of: Consumer, state: State) -> None:
        """Leave a device in a state, as a process that is killed then does."""
        store = AllocationStore(self.node.owners)
        store.claim([device], of, lambda device: ())
        if state is not State.CLAIMED:
            store.attach([device.id], of)
        if state is State.CLEANING:
            store.begin_cleaning(device.id)
        self.assertEqual(state, store.records()[device.id].state)

    def freed(self: Any, device: Device) -> None:
        store = AllocationStore(self.node.owners)
        store.block(device.id, "the test ended")
        store.free(device.id)

    def test_monitoring_frees_what_killed_actions_left(self: Any) -> None:
        store = AllocationStore(self.node.owners)
        of = consumer(self.node.driver, self.engine.name, 7)
        nova, other = Consumer("nova", "lxd", "instance-00000007", "7"), consumer(*OTHER[self.node.driver], 7)
        for device, holder, state in (
                (self.gpus[0], of, State.CLEANING), (self.vfs[0], of, State.CLAIMED), (self.vfs[1], of, State.ATTACHED),
                (self.gpus[1], nova, State.ATTACHED), (self.vfs[2], other, State.CLAIMED)):
            self.left(device, holder, state)
        result = self.node.probe("vm/status")
        self.assertEqual(0, result.status, result.err)
        kept = {self.gpus[1].id: nova, self.vfs[2].id: other}
        await_that(lambda: {name: record.consumer for name, record in store.records().items()} == kept,
                   "only what others have is held")
        for device in (self.gpus[1], self.vfs[2]):
            self.freed(device)

    def test_deployment_does_not_wait_for_monitoring(self: Any) -> None:
        self.left(self.gpus[0], consumer(self.node.driver, self.engine.name, 7), State.ATTACHED)
        self.deployed(Machine(devices=(self.gpus[0],)))

    def test_killed_deployment_holds_nothing_without_container(self: Any) -> None:
        store, machine = AllocationStore(self.node.owners), Machine(devices=(self.gpus[0], self.vfs[0]))
        self.addCleanup(self.ok, "cancel", machine, lcm=CLEANUP)
        for moment in MOMENTS:
            self.node.give_disk(machine)
            with self.node.begun("deploy", machine, lcm=BOOT) as process:
                time.sleep(moment)
                os.killpg(process.pid, signal.SIGKILL)
            self.assertEqual(0, self.node.probe("vm/status").status)
            await_that(lambda: self.engine.exists(machine.name) or not store.records(), "its devices are free")
            self.ok("cancel", machine, lcm=CLEANUP)
