# SPDX-License-Identifier: Apache-2.0
from typing import Any
from unittest import mock

import testtools
from nova import objects
from nova.network import model
from oslo_utils.fixture import uuidsentinel as uuids

from nova_lxd_ext.hardware import tags

VOLUME = uuids.volume


def interface(port: str, tag: str | None) -> objects.VirtualInterface:
    return objects.VirtualInterface(uuid=port, tag=tag)


def disk(tag: str | None, **changes: Any) -> objects.BlockDeviceMapping:
    return objects.BlockDeviceMapping(**{"tag": tag, "volume_id": VOLUME, "device_name": "/dev/vdb"} | changes)


def port(name: str, last: int = 1, **more: Any) -> model.VIF:
    return model.VIF(id=name, address=f"fa:16:3e:00:00:{last:02x}", **more)


def described(found: objects.InstanceDeviceMetadata | None) -> list[dict[str, Any]]:
    """Return what is set of each device, without objects."""
    return [{name: getattr(device, name).address if name == "bus" else getattr(device, name)
             for name in device.obj_fields if name in device}
            for device in (found.devices if found else ())]


class BuildTest(testtools.TestCase):
    def test_a_tagged_port_and_a_tagged_volume(self) -> None:
        found = tags.build([interface(uuids.a, "storage"), interface(uuids.b, None)], [port(uuids.a), port(uuids.b, 2)],
                           [disk("data"), disk(None, device_name="/dev/vdc")])
        self.assertEqual([{"mac": "fa:16:3e:00:00:01", "tags": ["storage"], "vf_trusted": False},
                          {"tags": ["data"], "serial": VOLUME, "path": "/dev/vdb"}], described(found))

    def test_a_disk_that_is_no_volume_has_no_path(self) -> None:
        found = tags.build([], [], [disk("root", volume_id=None, device_name="/dev/vda")])
        self.assertEqual([{"tags": ["root"], "serial": None}], described(found))

    def test_a_direct_port_has_its_functions_address_and_vlan(self) -> None:
        direct = port(uuids.a, details={"vlan": "42"}, profile={"pci_slot": "0000:5e:00.1", "trusted": "true"})
        (found,) = described(tags.build([interface(uuids.a, "fast")], [direct], []))
        self.assertEqual({"mac": "fa:16:3e:00:00:01", "tags": ["fast"], "bus": "0000:5e:00.1", "vlan": 42,
                          "vf_trusted": True}, found)

    def test_a_vlan_alone_is_told_and_vlan_0_is_none(self) -> None:
        for vlan, expected in (("42", [42]), (7, [7]), ("0", []), (None, [])):
            found = described(tags.build([], [port(uuids.a, details={"vlan": vlan})], []))
            self.assertEqual(expected, [device["vlan"] for device in found], vlan)

    def test_what_has_left_the_server_is_not_told(self) -> None:
        """Nova's record of a port may outlive the port."""
        self.assertIsNone(tags.build([interface(uuids.gone, "storage")], [port(uuids.a)], []))

    def test_nothing_tagged_nothing_told(self) -> None:
        self.assertIsNone(tags.build([interface(uuids.a, None)], [port(uuids.a)], [disk(None)]))

    def test_survives_novas_database(self) -> None:
        direct = port(uuids.a, profile={"pci_slot": "0000:5e:00.1"})
        found = tags.build([interface(uuids.a, "t")], [direct], [disk("data")])
        again = objects.InstanceDeviceMetadata.obj_from_db(None, found._to_json())
        self.assertEqual(described(found), described(again))


class AttachingTest(testtools.TestCase):
    def test_the_new_port_is_told_beside_the_old_one_and_saved(self) -> None:
        old, new = port(uuids.a), port(uuids.b, 2)
        server = mock.Mock(uuid=uuids.server)
        for known in ([old], [old, new]):  # nova's memory of the ports may be older or newer
            server.get_network_info.return_value = model.NetworkInfo(known)
            server.save.reset_mock()
            with (mock.patch.object(objects.VirtualInterfaceList, "get_by_instance_uuid",
                                    return_value=[interface(uuids.a, "one"), interface(uuids.b, "two")]),
                  mock.patch.object(objects.BlockDeviceMappingList, "get_by_instance_uuid", return_value=[])):
                tags.attaching(None, server, new)
            self.assertEqual([["one"], ["two"]], [device.tags for device in server.device_metadata.devices])
            server.save.assert_called_once_with()
