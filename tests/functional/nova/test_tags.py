# SPDX-License-Identifier: Apache-2.0
"""Tags of devices, as the guest finds them in its metadata."""

from tests.functional.nova import base  # isort: skip

import json
from typing import Any

from nova import context, objects

from tests import levels
from tests.functional.nova.test_ports import PortServers

EMPTY = objects.InstanceDeviceMetadata(devices=[])


def drive(servers: base.LxdServers, server: Any) -> list[dict[str, Any]]:
    """Return the devices that the guest finds on its config drive."""
    text = servers.inside(server, "cat", "/config-drive/openstack/latest/meta_data.json").output
    return json.loads(text)["devices"]


@levels.exhaustive("a tagged port is told in the gate", tests=("test_a_tagged_disk_is_told",))
class TagTest(base.LxdServers):
    def test_a_tagged_disk_is_told(self) -> None:
        image = self.image()
        root = {"boot_index": 0, "uuid": image, "source_type": "image", "destination_type": "local", "tag": "system",
                "delete_on_termination": True}
        server = self.server(image=image, config_drive=True, block_device_mapping_v2=[root])
        (device,) = drive(self, server)
        self.assertEqual(("disk", ["system"]), (device["type"], device["tags"]))
        self._delete_server(server)
        self.assert_nothing_left()

    @levels.exhaustive("units show it; a tagged disk and a tagged port remain")
    def test_without_tags_nothing_is_told(self) -> None:
        server = self.server(config_drive=True)
        self.assertEqual([], drive(self, server))


class TaggedPortTest(PortServers):
    def told(self, server: Any) -> dict[str, list[str]]:
        """Map MACs to tags, as nova's metadata service would."""
        instance = objects.Instance.get_by_uuid(context.get_admin_context(), server["id"],
                                                expected_attrs=["device_metadata"])
        return {device.mac: device.tags for device in (instance.device_metadata or EMPTY).devices}

    def test_a_port_is_told_while_the_server_has_it(self) -> None:
        first, second = self.port(), self.port()
        server = self.server(networks=[{"port": first["id"], "tag": "storage"}], config_drive=True)
        (told,) = drive(self, server)
        self.assertEqual(("nic", first["mac_address"], ["storage"]), (told["type"], told["mac"], told["tags"]))
        self.api.attach_interface(server["id"], {"interfaceAttachment": {"port_id": second["id"], "tag": "backup"}})
        self.assertEqual({first["mac_address"]: ["storage"], second["mac_address"]: ["backup"]}, self.told(server))
        self.api.detach_interface(server["id"], first["id"])
        self.notifier.wait_for_versioned_notifications("instance.interface_detach.end")
        self.assertEqual({second["mac_address"]: ["backup"]}, self.told(server))
        self._delete_server(server)
        self.assert_nothing_left()
