"""Tags of devices, as the guest finds them on its config drive."""

from tests.functional.nova import base  # isort: skip

import json
from typing import Any


class TagTest(base.LxdServers):
    def told(self, server: Any) -> list[dict[str, Any]]:
        text = self.inside(server, "cat", "/config-drive/openstack/latest/meta_data.json").output
        return json.loads(text)["devices"]

    def test_a_tagged_disk_is_told(self) -> None:
        image = self.image()
        root = {"boot_index": 0, "uuid": image, "source_type": "image", "destination_type": "local", "tag": "system",
                "delete_on_termination": True}
        server = self.server(image=image, config_drive=True, block_device_mapping_v2=[root])
        (device,) = self.told(server)
        self.assertEqual(("disk", ["system"]), (device["type"], device["tags"]))
        self._delete_server(server)
        self.assert_nothing_left()

    def test_without_tags_nothing_is_told(self) -> None:
        server = self.server(config_drive=True)
        self.assertEqual([], self.told(server))
