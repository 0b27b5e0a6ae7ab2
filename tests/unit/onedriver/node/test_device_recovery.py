# SPDX-License-Identifier: Apache-2.0
"""Test that devices of killed actions are released without an operator, and no others."""

import dataclasses
import os
from pathlib import Path
from unittest import mock

import fixtures
import testtools

import lxdone.conf
import lxdone.vmm
import onedock.conf
import onedock.vmm
from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.sharedmemory import MIB, JobMemory, SharedMemories
from containerhost.allocation.states import State
from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.devices.model import Kind
from containerhost.engines.contract import ContainerState, Status
from containerhost.errors import EngineError
from containerhost.inventory.scan import HostView, scan
from containerhost.linux.process import rungroup
from containerhost.linux.process.processes import Process
from onedriver.node.device_recovery import DeviceRecovery
from onedriver.node.names import name
from onedriver.node.vm_ids import consumer
from tests.unit.containerhost.allocation.allocatorcase import Willing, host
from tests.unit.containerhost.allocation.test_sharedmemory import Recording
from tests.unit.containerhost.hosts import MEMORY

VM_ID = 7


class DeviceRecoveryCase(testtools.TestCase):
    """:ivar present: the containers that the engine reports
    :ivar configured: device id -> container whose configuration has it
    :ivar known: whether this driver's own records know a container of the VM; an error is raised
    """

    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir(rootdir=MEMORY)).path)
        self.store = AllocationStore(self.directory / "owners")
        self.configured: dict[str, str] = {}
        self.present: list[ContainerState] = []
        self.known: bool | Exception = False
        self.host = host("small")
        allocator = DeviceAllocator(self.store, lambda: HostView(self.host), Willing(),
                                    lambda devices: self.configured, self.host)
        self.mounts = Recording()
        self.memories = SharedMemories(self.directory / "owners", "lxdone", "lxd", self.mounts)
        self.recovery = DeviceRecovery("lxdone", "lxd", self.has_container, allocator, self.memories,
                                       self.directory / "state")
        self.gpu = next(device for device in scan(self.host).devices if device.kind is Kind.GPU)
        self.vm = consumer("lxdone", "lxd", VM_ID)

    def has_container(self, vm_id: int) -> bool:
        self.assertEqual(VM_ID, vm_id)
        if isinstance(self.known, Exception):
            raise self.known
        return self.known or bool(self.present)

    def left(self, state: State, of: Consumer | None = None) -> None:
        """Leave the device in a state, as a process that is killed then does."""
        of = of or self.vm
        if self.gpu.id in self.store.records():
            self.store.block(self.gpu.id, "the test before")
            self.store.free(self.gpu.id)
        self.store.claim([self.gpu], of, lambda device: ())
        if state is State.PREPARED:
            self.store.prepare(self.gpu.id, of, {})
        if state in (State.ATTACHED, State.CLEANING):
            self.store.attach([self.gpu.id], of)
        if state is State.CLEANING:
            self.store.begin_cleaning(self.gpu.id)
        if state is State.BLOCKED:
            self.store.block(self.gpu.id, "not clean")
        self.assertEqual(state, self.store.records()[self.gpu.id].state)

    def assert_freed(self, freed: bool) -> None:
        before = self.store.records()
        self.assertEqual((VM_ID,) if freed else (), self.recovery.pending(self.present))
        self.recovery.recover(self.present)
        self.assertEqual({} if freed else before, self.store.records())


class DeviceRecoveryTest(DeviceRecoveryCase):
    def test_what_was_begun_for_container_that_never_came_is_freed(self) -> None:
        for state in (State.CLAIMED, State.PREPARED, State.ATTACHED, State.CLEANING):
            self.left(state)
            self.assert_freed(True)

    def test_container_that_exists_keeps_what_it_has_and_nothing_else(self) -> None:
        self.present = [ContainerState(name(VM_ID), Status.RUNNING, {})]
        for state, freed in ((State.CLAIMED, True), (State.PREPARED, True), (State.ATTACHED, False),
                             (State.CLEANING, True)):
            self.left(state)
            self.assert_freed(freed)

    def test_devices_of_killed_run_are_freed_when_it_has_ended(self) -> None:
        ended = Consumer(rungroup.DRIVER, "process", rungroup.supervisor().replace("-", "-1", 1), "1")
        alive, unknown = (dataclasses.replace(ended, container=text) for text in (rungroup.supervisor(), "unknown"))
        elsewhere = dataclasses.replace(ended, container=f"{ended.container}1")  # another namespace
        for run, freed in ((alive, False), (unknown, False), (elsewhere, False), (ended, True)):
            self.left(State.ATTACHED, run)
            self.recovery.recover(self.present)
            self.assertEqual(freed, self.store.records() == {}, run)

    def test_engine_alone_is_no_evidence_that_container_is_gone(self) -> None:
        self.left(State.ATTACHED)
        for self.known in (True, EngineError("no answer")):
            self.assert_freed(False)

    def test_device_in_configuration_of_container_is_kept(self) -> None:
        for state in (State.CLAIMED, State.ATTACHED, State.CLEANING):
            self.left(state)
            self.configured = {self.gpu.id: name(VM_ID)}
            self.recovery.recover(self.present)
            self.assertEqual({self.gpu.id}, set(self.store.held_by(self.vm)))

    def test_memory_whose_record_somebody_removed_is_unmounted(self) -> None:
        self.memories.join(JobMemory("3", "wave", MIB), self.vm)
        self.known = True
        self.recovery.recover(self.present)
        self.assertEqual(2, len(self.mounts.there))
        (record,) = (self.directory / "owners/memory").glob("*.json")
        record.unlink()
        self.recovery.recover(self.present)
        self.assertEqual({}, self.mounts.there)

    def test_devices_of_others_are_not_touched(self) -> None:
        for of in (Consumer("nova", "lxd", "instance-00000001", "1"), consumer("onedock", "docker", VM_ID),
                   consumer("lxdone", "docker", VM_ID), Consumer("containerhost", "host", "scrub", "operator")):
            for state in (State.CLAIMED, State.PREPARED, State.ATTACHED, State.CLEANING):
                self.left(state, of)
                self.assert_freed(False)

    def test_blocked_device_is_not_cleaned_in_every_round(self) -> None:
        self.left(State.BLOCKED)
        self.assert_freed(False)
        with mock.patch.object(AllocationStore, "in_this_boot", return_value=False):
            self.assert_freed(True)

    def test_blocked_device_is_freed_once_the_containers_that_may_have_it_have_ended(self) -> None:
        """Though its VM was restarted meanwhile, and runs."""
        self.present, self.known = [ContainerState(name(VM_ID), Status.RUNNING, {})], True
        for holder, freed in ((Process.of(os.getpid()), False), (Process(1 << 30, 1), True)):
            self.left(State.ATTACHED)
            self.store.begin_cleaning(self.gpu.id, holders=[holder])
            self.store.block(self.gpu.id, "process 7 (python3) may use it")
            self.assert_freed(freed)

    def test_records_that_cannot_be_read_stop_no_round(self) -> None:
        self.left(State.CLAIMED)
        next((self.directory / "owners").glob("*.json")).write_text("{")
        self.assertEqual((), self.recovery.pending(self.present))


class SecondWitness:
    """Test that a driver's own records count for a container, whatever the engine reports."""

    def test_witnesses(self) -> None:
        self.assertFalse(self.vmm.has_container(VM_ID))  # type: ignore[attr-defined]
        for engine, own in ((True, False), (False, True), (True, True)):
            self.tell(engine, own)  # type: ignore[attr-defined]
            self.assertTrue(self.vmm.has_container(VM_ID))  # type: ignore[attr-defined]


class LxdoneWitnessTest(SecondWitness, testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.engine, self.parts = mock.Mock(), {part: mock.Mock() for part in (
            "allocator", "snapshots", "root_images", "writeback", "disks", "contexts", "commands", "consoles", "host",
            "ids", "limit_interface", "transfers", "connect")}
        self.vmm = lxdone.vmm.Vmm(lxdone.conf.Options(), self.engine, **self.parts)
        self.tell(False, False)

    def tell(self, engine: bool, own: bool) -> None:
        self.engine.exists.return_value = engine
        self.parts["writeback"].is_begun.return_value = own


class OnedockWitnessTest(SecondWitness, testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.engine = mock.Mock()
        self.vmm = onedock.vmm.Vmm(onedock.conf.Options(), self.engine, *(mock.Mock() for _ in range(8)))
        self.tell(False, False)

    def tell(self, engine: bool, own: bool, asked: str = name(VM_ID)) -> None:
        self.engine.exists.side_effect = lambda each: engine and each == asked
        self.engine.has_record.side_effect = lambda each: own and each == asked

    def test_container_of_revert_that_was_killed_counts(self) -> None:
        for aside in ("old", "anew"):
            self.tell(True, False, f"{name(VM_ID)}-{aside}")
            self.assertTrue(self.vmm.has_container(VM_ID))
