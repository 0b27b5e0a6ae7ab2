# SPDX-License-Identifier: Apache-2.0
"""Test that recovery from a crash needs the record alone, whatever the state it was found in."""

import os
import pathlib
from collections.abc import Callable
from unittest import mock

import fixtures
import testtools

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.states import Action, State, recovery
from containerhost.allocation.store import AllocationStore
from containerhost.devices.model import Kind, Role
from containerhost.inventory.scan import HostView, scan
from containerhost.linux.sysfs import Host
from tests.unit.containerhost.allocation.allocatorcase import Willing, consumer, host
from tests.unit.containerhost.allocation.test_store import MEMORY


class Boot(Host):
    """This host, in a boot of the given id."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    @property
    def boot_id(self) -> str:
        return self.name


class Logged(Willing):
    """Obeys, and writes each step that changes a device to a file, which outlives a killed process."""

    def __init__(self, log: pathlib.Path, before: Callable[[], None] = lambda: None) -> None:
        self.log = log
        self.before = before
        log.touch()

    def step(self, name: str) -> None:
        self.before()
        with self.log.open("ab", buffering=0) as log:
            log.write(f"{name}\n".encode())

    def steps(self) -> list[str]:
        return self.log.read_text().splitlines()

    def reset_gpu(self, vendor, address, others=()):
        self.step(f"reset {address}")
        return True

    def unbind(self, address, driver):
        self.step(f"unbind {address}")

    def bind(self, address, driver):
        self.step(f"bind {address}")

    def reset(self, address):
        self.step(f"reset {address}")
        return True

    def set_vf_guids(self, netdev, index, node_guid, port_guid):
        self.step(f"guids of VF {index}: {node_guid} {port_guid}")

    def link_down_and_flush(self, name):
        self.step(f"link_down_and_flush {name}")

    def rename_netdev(self, name, new):
        raise AssertionError(f"{name} would be named {new}")


class RecoveryTestCase(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.base = pathlib.Path(self.useFixture(fixtures.TempDir(rootdir=MEMORY)).path)
        self.host = host("small")
        self.gpu = next(device for device in scan(self.host).devices if device.kind is Kind.GPU)
        self.vf = next(device for device in scan(self.host).devices if device.role is Role.VF)
        self.root = Logged(self.base / "log")
        self.configured: dict[str, str] = {}

    def store(self, name: str, boot: str = "boot-1") -> AllocationStore:
        return AllocationStore(self.base / name, host=Boot(boot))

    def allocator(self, store: AllocationStore, root: Logged | None = None) -> DeviceAllocator:
        return DeviceAllocator(store, lambda: HostView(self.host), root or self.root, lambda devices: self.configured,
                               self.host)


class TestEveryState(RecoveryTestCase):
    def in_state(self, name: str, state: State) -> None:
        store = self.store(name)
        store.claim([self.gpu], consumer("c1"), lambda device: ())
        if state in (State.PREPARED, State.ATTACHED, State.DETACHED, State.CLEANING, State.BLOCKED):
            store.prepare(self.gpu.id, consumer("c1"), {})
        if state in (State.ATTACHED, State.DETACHED, State.CLEANING, State.BLOCKED):
            store.attach([self.gpu.id], consumer("c1"))
        if state is State.DETACHED:
            store.detach([self.gpu.id], consumer("c1"), None)
        if state in (State.CLEANING, State.BLOCKED):
            store.begin_cleaning(self.gpu.id, holders=())
        if state is State.BLOCKED:
            store.block(self.gpu.id, "its memory could not be cleared")
        self.assertEqual(state, store.records()[self.gpu.id].state)

    def test_the_table_is_what_reconcile_does(self):
        for state in set(State) - {State.FREE}:
            for boot in ("boot-1", "boot-2"):
                for exists in (True, False):
                    for configured in (True, False):
                        name = f"{state}-{boot}-{exists}-{configured}"
                        self.in_state(name, state)
                        self.assert_recovered(name, state, boot, exists, configured)

    def assert_recovered(self, name: str, state: State, boot: str, exists: bool, configured: bool) -> None:
        self.configured = {self.gpu.id: "c1"} if configured else {}
        self.root.log.write_text("")
        store = self.store(name, boot)
        before = store.records()
        complaints = self.allocator(store).reconciler.reconcile("test", "lxd", ["c1"] if exists else [])
        action = recovery(state, same_boot=boot == "boot-1", exists=exists, configured=configured)
        kept = action in (Action.KEEP, Action.REBIND)
        self.assertEqual(before if kept else {}, store.records(), name)
        self.assertEqual([f"reset {self.gpu.id}"] if action is Action.CLEAN else [], self.root.steps(), name)
        self.assertEqual(kept and not exists, bool(complaints), (name, complaints))

    def test_a_device_that_is_still_dirty_stays_blocked(self):
        for state in (State.PREPARED, State.ATTACHED, State.CLEANING):
            self.in_state(str(state), state)
            store = self.store(str(state))
            with mock.patch.object(Logged, "reset_gpu", return_value=False), \
                    mock.patch("containerhost.allocation.cleaning.require_well",
                               side_effect=self.unhealthy):
                (complaint,) = self.allocator(store).reconciler.reconcile("test", "lxd", [])
            record = store.records()[self.gpu.id]
            self.assertEqual((State.BLOCKED, complaint), (record.state, record.blocked))

    @staticmethod
    def unhealthy(device_id: str, view: HostView) -> None:
        from containerhost.errors import DeviceUnhealthy
        raise DeviceUnhealthy(f"device {device_id} was released, but is not healthy")

    def test_names_of_interfaces_end_with_the_boot(self):
        """The name of before may be another interface's now, so it is not set again."""
        for boot, renamed in (("boot-1", True), ("boot-2", False)):
            store = self.store(boot)
            store.claim([self.vf], consumer("c1"), lambda device: ())
            store.prepare(self.vf.id, consumer("c1"), {"netdev": "former0", "driver": "mlx5_core"})
            store.attach([self.vf.id], consumer("c1"))
            allocator = self.allocator(self.store(boot, boot))
            if renamed:
                error = self.assertRaises(AssertionError, allocator.release, consumer("c1"))
                self.assertIn("would be named former0", str(error))
            else:
                self.assertEqual((), allocator.release(consumer("c1")))
                self.assertEqual({}, store.records())

    def test_settings_of_a_former_boot_are_recorded_anew(self):
        self.store("r").claim([self.vf], consumer("c1"), lambda device: ())
        self.store("r").prepare(self.vf.id, consumer("c1"), {"netdev": "former0", "mac": "first"})
        self.store("r", "boot-2").prepare(self.vf.id, consumer("c1"), {"netdev": "present0", "link": "auto"})
        record = self.store("r").records()[self.vf.id]
        self.assertEqual({"netdev": "present0", "mac": "first", "link": "auto"}, record.restore)
        self.assertEqual("boot-2", record.boot_id)


class TestRevoked(RecoveryTestCase):
    def test_network_function_that_a_process_keeps_is_free_once_its_driver_was_unbound(self):
        """Whatever handle the process keeps, and wherever: none works after that."""
        store = self.store("r")
        store.claim([self.vf], consumer("c1"), lambda device: ())
        store.attach([self.vf.id], consumer("c1"))
        with mock.patch.object(Logged, "users", side_effect=AssertionError("processes are searched")):
            self.assertEqual((), self.allocator(store).release_device(self.vf.id, consumer("c1"), os.getpid()))
        self.assertEqual(({}, [f"unbind {self.vf.id}", f"reset {self.vf.id}", f"bind {self.vf.id}"]),
                         (store.records(), self.root.steps()[:3]))


class TestOperator(RecoveryTestCase):
    def test_an_interrupted_cleaning_may_be_finished(self):
        store = self.store("r")
        store.claim([self.gpu], consumer("c1"), lambda device: ())
        store.attach([self.gpu.id], consumer("c1"))
        store.begin_cleaning(self.gpu.id, holders=())
        self.allocator(store).repair.clean(self.gpu.id)
        self.assertEqual(({}, [f"reset {self.gpu.id}"]), (store.records(), self.root.steps()))
