# SPDX-License-Identifier: Apache-2.0
"""Upgrade and downgrade of a host with allocated devices: records of older and of later releases are used and freed."""

import json
import pathlib
import shutil
from typing import Any

import fixtures
import testtools

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.record import VERSION
from containerhost.allocation.refusals import Request
from containerhost.allocation.states import State
from containerhost.allocation.store import AllocationStore
from containerhost.errors import DeviceHeld
from containerhost.inventory.scan import HostView
from tests.unit.containerhost.allocation.allocatorcase import consumer, host
from tests.unit.containerhost.allocation.test_recovery import Logged

# Written by the code before records had a version.
VERSION_1 = pathlib.Path(__file__).parent / "records/version1"
GPU, VF, BLOCKED = "0000:3b:00.0", "0000:5e:00.1", "0000:af:00.0"


class VersionsTestCase(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        base = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.directory = base / "owners"
        shutil.copytree(VERSION_1, self.directory)
        self.store = AllocationStore(self.directory)
        self.root = Logged(base / "log")
        self.allocator = DeviceAllocator(self.store, lambda: HostView(host("small")), self.root, host=host("small"))

    def content(self, device_id: str) -> dict[str, Any]:
        return json.loads((self.directory / f"{device_id}.json").read_text())

    def assert_usable(self) -> None:
        """The holders have their devices, nobody else gets them, and they are released clean."""
        self.assertEqual({GPU: State.ATTACHED, VF: State.ATTACHED, BLOCKED: State.BLOCKED},
                         {name: record.state for name, record in self.store.records().items()})
        self.assertEqual({GPU, VF}, self.allocator.held_by(consumer("c1")))
        for device_id in (GPU, VF, BLOCKED):
            self.assertRaises(DeviceHeld, self.allocator.acquire, [Request(device_id)], consumer("c3"))
        self.assertRaises(DeviceHeld, self.allocator.acquire, [Request(BLOCKED)], consumer("c2"))
        self.assertEqual((), self.allocator.reconciler.reconcile("test", "lxd", ["c1", "c2"]))
        grants = self.allocator.acquire([Request(GPU), Request(VF)], consumer("c1"))
        self.assertEqual([GPU, VF], [grant.device.id for grant in grants])
        self.assertEqual({GPU, VF, BLOCKED}, set(self.store.records()))

    def assert_releases(self) -> None:
        self.assertEqual((), self.allocator.release(consumer("c1")))
        self.assertEqual((), self.allocator.reconciler.reconcile("test", "lxd", []))
        self.assertEqual({}, self.store.records())
        for device_id in (GPU, VF, BLOCKED):
            self.assertIn(f"reset {device_id}", self.root.steps())


class TestUpgrade(VersionsTestCase):
    def test_records_of_the_release_before_are_used_and_released(self):
        self.assert_usable()
        self.assertEqual((VERSION, State.ATTACHED), (self.content(VF)["version"], self.content(VF)["state"]))
        self.assertEqual("ibs1v0", self.content(VF)["restore"]["netdev"])
        self.assert_releases()


class TestDowngrade(VersionsTestCase):
    """A later release wrote the records: a higher version, more fields, a state that is not known here."""

    def setUp(self) -> None:
        super().setUp()
        for file in self.directory.glob("*.json"):
            content = json.loads(file.read_text())
            content |= {"version": VERSION + 1, "state": "quarantined", "boot_id": None, "lease": {"until": [1, 2]}}
            content["owner"]["project"] = "p1"
            file.write_text(json.dumps(content))

    def assert_kept(self, device_id: str) -> None:
        content = self.content(device_id)
        self.assertEqual((VERSION + 1, {"until": [1, 2]}, "p1"),
                         (content["version"], content["lease"], content["owner"]["project"]))

    def test_records_of_a_later_release_are_used_and_released(self):
        self.assert_usable()
        self.assert_releases()

    def test_fields_of_a_later_release_are_kept(self):
        self.store.prepare(VF, consumer("c1"), {"link": "auto"})
        self.store.attach([GPU], consumer("c1"))
        self.store.begin_cleaning(BLOCKED)
        for device_id in (GPU, VF, BLOCKED):
            self.assert_kept(device_id)
        self.assertEqual(("auto", "attached", "cleaning"), (
            self.content(VF)["restore"]["link"], self.content(GPU)["state"], self.content(BLOCKED)["state"]))
        self.store.block(GPU, "not clean")
        self.assert_kept(GPU)
        self.assertEqual(("blocked", "not clean"), (self.content(GPU)["state"], self.content(GPU)["blocked"]))
