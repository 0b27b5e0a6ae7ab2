# SPDX-License-Identifier: Apache-2.0
from typing import Any
from unittest import mock

import testtools
from nova import exception

from containerhost.errors import SpecError
from nova_lxd_ext.storage import volumeconfig
from tests.unit.nova import records

VOLUME = "4d1f3b1a-0b0e-4a0e-9d0c-1c9f5c3f6f01"


def connection(kind: str = "iscsi", **data: Any) -> dict[str, Any]:
    return {"driver_volume_type": kind, "data": {"volume_id": VOLUME, "auth_password": "hush", **data}}


def disk(name: str | None) -> mock.Mock:
    return mock.Mock(device_name=name)


class VolumeTest(testtools.TestCase):
    def test_what_is_connected_and_where_it_is_seen(self) -> None:
        found = volumeconfig.volume(connection(), "/dev/vdb")
        self.assertEqual((VOLUME, "iscsi", "/dev/vdb", "hush"), (found.id, found.kind, found.path,
                                                                 found.data["auth_password"]))
        self.assertNotIn("hush", repr(found))

    def test_what_can_never_be_is_refused_with_the_reason(self) -> None:
        table = [
            ({"driver_volume_type": "nfs", "data": {"volume_id": VOLUME}}, "/dev/vdb", None, "block devices only"),
            (connection(encrypted=True), "/dev/vdb", None, "encrypted"),
            (connection(), "/dev/vdb", {"provider": "luks"}, "encrypted"),
            (connection(access_mode="ro"), "/dev/vdb", None, "read"),
            (connection(qos_specs={"read_iops_sec": "10"}), "/dev/vdb", None, "back-end"),
            (connection(), "/dev/../etc/passwd", None, "no name of a disk"),
            (connection(), "/dev/vdb1", None, "no name of a disk"),
            ({}, "/dev/vdb", None, "no connection"),
        ]
        for info, path, encryption, words in table:
            with self.subTest(words=words, info=info):
                error = self.assertRaises(SpecError, volumeconfig.volume, info, path, encryption)
                self.assertIn(words, str(error))
                self.assertNotIn("hush", str(error))

    def test_of_a_boot(self) -> None:
        disks = [{"boot_index": None, "connection_info": connection(), "mount_device": "/dev/vdb"}]
        self.assertEqual([VOLUME], [one.id for one in volumeconfig.volumes({"block_device_mapping": disks})])
        self.assertEqual((), volumeconfig.volumes({}))
        root = {"boot_index": 0, "connection_info": connection(), "mount_device": "/dev/vda"}
        error = self.assertRaises(SpecError, volumeconfig.volumes, {"block_device_mapping": [*disks, root]})
        self.assertIn("boot from an image", str(error))

    def test_swap(self) -> None:
        plain = records.flavor()
        volumeconfig.require_no_swap(plain, {})
        for flavor, info in ((records.flavor(swap=64), {}), (plain, {"swap": {"swap_size": 64}})):
            error = self.assertRaises(SpecError, volumeconfig.require_no_swap, flavor, info)
            self.assertIn("without swap", str(error))


class NamesTest(testtools.TestCase):
    def test_a_new_server_keeps_the_letters_that_were_chosen(self) -> None:
        disks = [disk("/dev/vda"), disk(None), disk("/dev/sdb"), disk(None)]
        volumeconfig.name_missing(records.instance(), "/dev/vda", disks)
        self.assertEqual(["/dev/vda", "/dev/vdc", "/dev/vdb", "/dev/vdd"], [one.device_name for one in disks])
        disks[0].save.assert_not_called()
        disks[1].save.assert_called_once_with()

    def test_one_more(self) -> None:
        server = records.instance()
        self.assertEqual("/dev/vdb", volumeconfig.name_for(server, [disk("/dev/vda")], None))
        self.assertEqual("/dev/vdf", volumeconfig.name_for(server, [disk("/dev/vdb")], "/dev/sdf"))
        self.assertEqual("/dev/vdc", volumeconfig.name_for(server, [disk("/dev/vdb")], None))

    def test_a_letter_that_is_taken_or_none(self) -> None:
        server = records.instance()
        self.assertRaises(exception.DevicePathInUse, volumeconfig.name_for, server, [disk("/dev/vdb")], "/dev/vdb")
        self.assertRaises(exception.InvalidDevicePath, volumeconfig.name_for, server, [], "../../etc")
