# SPDX-License-Identifier: Apache-2.0
"""Register images that are made of Debian's packages."""

from collections.abc import Iterator
from contextlib import contextmanager

from tools.debianimage import DebianImage
from tools.oned.machine import Machine
from tools.oned.scenarios.disks import image_id, temporary
from tools.oned.setup import IMAGES_FROM
from tools.oned.stage import ONEDOCK, Driver, Stage


@contextmanager
def registered(stage: Stage, driver: Driver, name: str, image: DebianImage, init: str, size: int) -> Iterator[str]:
    """Let an image be there within the block.

    :param init: program that a container of Docker runs
    :param size: of a root, MiB
    :returns: its ID
    """
    front, own = stage.cloud.front, f"{name}-{driver.name}"
    path = f"{IMAGES_FROM}/{own}"
    if driver is ONEDOCK:
        front.run("install", "-m", "644", docker_archive(stage.cloud.nodes[0], name, image, init), path)
    else:
        front.run("install", "-m", "644", str(image.unified(print)), path)
    datastore = "containers" if driver is ONEDOCK else "default"
    stage.one("oneimage", "create", "--datastore", datastore, "--name", own, "--type", "OS", "--path", path, "--size",
              str(size))
    number = image_id(stage, own)
    with temporary(stage, number):
        front.run("rm", path)
        yield number


def docker_archive(node: Machine, name: str, image: DebianImage, init: str) -> str:
    """Build what `docker save` makes of an image, and of which Docker has nothing afterwards."""
    docker = f"docker --host unix://{node.home}/docker/docker.sock"
    archive = node.home.parent / f"{name}.tar"
    node.run("sh", "-ec", f"zstd -dc {image.plain(print)} | {docker} import --change 'CMD [\"{init}\"]' - {name}; "
                          f"{docker} save --output {archive} {name}; {docker} rmi {name}")
    return str(archive)
