# SPDX-License-Identifier: Apache-2.0
"""Test that devices of killed actions are released without an operator, and no others."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import fixtures
import testtools

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.states import State
from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.devices.model import Kind
from containerhost.devices.scan import HostView, scan
from containerhost.engines import ContainerState
from containerhost.storage.sharedmemory import SharedMemories
from onedriver.node.device_recovery import DeviceRecovery
from onedriver.node.vm_ids import consumer
from tests.kernel.onedriver.node.test_vmlock import HOLD
from tests.unit.containerhost.allocation.test_allocator import Willing, host
from tests.unit.containerhost.hosts import MEMORY
from tests.unit.containerhost.test_sharedmemory import Recording
from tests.unit.onedriver.node.test_device_recovery import VM_ID


class DeviceRecoveryTest(testtools.TestCase):
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

    def test_vm_that_action_works_on_is_left_to_it(self) -> None:
        self.left(State.CLAIMED)
        with self.worked_on():
            self.assert_freed(False)
        self.assert_freed(True)

    def test_vm_that_action_begins_on_meanwhile_is_left_to_it(self) -> None:
        self.left(State.CLAIMED)
        with self.worked_on(), mock.patch.object(self.recovery, "pending", return_value=(VM_ID,)):
            self.recovery.recover(self.present)
        self.assertEqual({self.gpu.id}, set(self.store.records()))

    @contextlib.contextmanager
    def worked_on(self) -> Iterator[None]:
        with subprocess.Popen([sys.executable, "-c", HOLD, str(self.directory / "state"), str(VM_ID)],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[4]) as action:
            self.assertEqual(b"held\n", action.stdout.readline())  # type: ignore[union-attr]
            yield
            action.communicate()
