# SPDX-License-Identifier: Apache-2.0
"""Steps of the suite image-registry: Glance's images, and a server that boots from one."""

import hashlib
import tempfile
from pathlib import Path
from typing import Any

import common
from common import Output, need, tenant
from openstack.connection import Connection

NAME = "isv-image"
BLOCK = 1 << 20


def upload_image(output: Output) -> None:
    """Upload a file, and compare the checksum that Glance made with that of the file."""
    cloud, path = tenant(), Path(common.setting("AICLOUD_IMAGE_FILE"))
    image = upload(cloud, NAME, path)
    output |= {"image_id": image.id, "storage_bucket": image.properties.get("stores") or image.store or "",
               "disk_ids": [image.id]}
    with output.test("checksum") as entry, path.open("rb") as file:
        entry[image.hash_algo] = image.hash_value
        need(image.hash_value == hashlib.file_digest(file, image.hash_algo).hexdigest(),
             "Glance has another content than the file")


def upload(cloud: Connection, name: str, path: Path) -> Any:
    made = cloud.create_image(name, filename=str(path), disk_format="raw", container_format="bare", wait=True,
                              timeout=common.TIMEOUT)
    return cloud.image.get_image(made.id)


def crud_image(output: Output, image: str) -> None:
    """Read an image, find it in the list, make a copy of its content and delete that."""
    cloud = tenant()
    output["image_id"] = image
    with output.test("get", "operations") as entry:
        source = cloud.image.get_image(image)
        entry["state"] = source.status
    with output.test("list", "operations"):
        need(image in [each.id for each in cloud.image.images()], "the list does not have it")
    with output.test("create", "operations") as entry, tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "copy"
        cloud.image.download_image(image, output=str(path), chunk_size=BLOCK)
        copy = upload(cloud, f"{NAME}-copy", path)
        output.undo.callback(cloud.image.delete_image, copy.id, ignore_missing=True)
        entry["image_id"] = copy.id
        need(copy.hash_value == source.hash_value, "the copy has another content")
    with output.test("delete", "operations"):
        cloud.image.delete_image(copy.id, ignore_missing=False)
        need(copy.id not in [each.id for each in cloud.image.images()], "the list still has it")


def launch_instance(output: Output, image: str) -> None:
    output |= common.launch(tenant(), NAME, image=image)
    output["key_path"] = output["key_file"]
    with output.test("booted_from_image"):
        need(common.server_named(tenant(), NAME).image.id == image, "Nova names another image")


def teardown_instance(output: Output) -> None:
    output["resources_deleted"] = common.remove(tenant(), NAME)


def teardown_image(output: Output) -> None:
    cloud = tenant()
    images = [image.id for image in cloud.image.images(visibility="private") if image.name.startswith(NAME)]
    for image in images:
        cloud.image.delete_image(image, ignore_missing=False)
    output["resources_deleted"] = [f"image:{image}" for image in images]


if __name__ == "__main__":
    common.run(globals())
