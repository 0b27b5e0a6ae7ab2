# SPDX-License-Identifier: Apache-2.0
from typing import Any

import testtools
from oslo_utils import units

from containerhost.engines.capabilities import Disk
from containerhost.engines.contract import ContainerState, Status
from containerhost.engines.spec import PoolDisk
from containerhost.errors import SpecError
from containerhost.inventory.scan import HostView
from nova_lxd_ext.instance import labels
from nova_lxd_ext.instance.requested import RequestedResources
from nova_lxd_ext.storage.ephemerals import Ephemerals, sizes
from tests.unit.nova import fakes, records


def asked(size: int, **more: Any) -> dict[str, Any]:
    return {"size": size, "guest_format": None, "encrypted": False, **more}


class SizesTest(testtools.TestCase):
    def test_by_flavor_and_by_what_was_asked_for(self) -> None:
        for flavor_gb, disks, expected in ((0, [], ()), (5, [], (5,)), (5, [asked(2), asked(3)], (2, 3)),
                                           (5, [asked(0)], (5,))):
            with self.subTest(flavor=flavor_gb, asked=disks):
                found = sizes(records.flavor(ephemeral_gb=flavor_gb), {"ephemerals": disks})
                self.assertEqual(tuple(size * units.Gi for size in expected), found)

    def test_what_the_pool_cannot_give(self) -> None:
        for disk, word in ((asked(1, guest_format="ext4"), "ext4"), (asked(1, encrypted=True), "encrypted")):
            self.assertIn(word, str(self.assertRaises(SpecError, sizes, records.flavor(), {"ephemerals": [disk]})))


class EphemeralsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.disks = fakes.FakeDisks()
        self.ephemerals = Ephemerals(self.disks, fakes.FakeDiskTransfers(self.disks))
        self.server = records.instance(flavor_changes={"ephemeral_gb": 3})

    def attach_all(self) -> tuple[PoolDisk, ...]:
        return self.ephemerals.attach_all(self.server, RequestedResources(), HostView())

    def test_made_once_and_gone_with_the_server(self) -> None:
        for _ in range(2):
            self.assertEqual((PoolDisk("ephemeral0", "default", f"{self.server.name}-ephemeral0", "/ephemeral0"),),
                             self.attach_all())
        (disk,) = self.disks.all()
        self.assertEqual((3 * units.Gi, {labels.UUID: self.server.uuid}), (disk.size, disk.labels))
        self.ephemerals.release_all(self.server, RequestedResources(), HostView())
        self.assertEqual((disk,), self.disks.all())
        for _ in range(2):
            self.ephemerals.end(self.server.uuid)
            self.assertEqual((), self.disks.all())

    def test_growing_and_back(self) -> None:
        self.attach_all()
        small, large = self.server.flavor, records.flavor(ephemeral_gb=5)
        for flavor, size in ((large, 5), (small, 3), (records.flavor(), None)):
            with self.subTest(size=size):
                self.server.flavor = flavor
                self.ephemerals.revert_resize(self.server, RequestedResources())
                self.attach_all()
                self.assertEqual([size * units.Gi] if size else [], [disk.size for disk in self.disks.all()])

    def test_other_disks_of_the_pool_stay(self) -> None:
        for disk in (Disk("mine", 1, {}, False), Disk("theirs", 1, {"nova.uuid": "x"}, True)):
            self.disks.disks[disk.name] = disk
        self.ephemerals.end(self.server.uuid)
        self.ephemerals.reconcile([])
        self.assertEqual({"mine", "theirs"}, set(self.disks.disks))

    def test_a_disk_that_a_container_has_stays_with_it(self) -> None:
        self.disks.disks["kept"] = Disk("kept", 1, {labels.UUID: self.server.uuid}, True)
        self.ephemerals.reconcile([])
        self.assertIn("kept", self.disks.disks)

    def test_what_a_killed_boot_left_goes_at_the_start(self) -> None:
        self.attach_all()
        self.ephemerals.reconcile([ContainerState(self.server.name, Status.STOPPED, {labels.UUID: self.server.uuid})])
        self.assertEqual(1, len(self.disks.all()))
        self.ephemerals.reconcile([])
        self.assertEqual((), self.disks.all())
