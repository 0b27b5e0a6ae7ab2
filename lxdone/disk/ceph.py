# SPDX-License-Identifier: Apache-2.0
"""Map images of Ceph as block devices of the node, by the ``rbd`` program and the node's own /etc/ceph/ceph.conf.

Names are those of OpenNebula's ``ceph`` transfer driver: a persistent image is used directly, of others a clone
named after the VM and the disk.
"""

import json
import shutil
from pathlib import Path

from onedriver.errors import BadInput, DriverError, NotSupported
from onedriver.node.programs import run
from onedriver.vm import Disk

TIMEOUT = 60  # s
LONG_TIMEOUT = 3600  # s
SNAPSHOT = "lxdone-unfinished"  # the previous content of an image that is being written


def image(vm_id: int, disk: Disk) -> str:
    """Return the cluster's name of the image, ``pool/image``; raise NotSupported if the node cannot use it."""
    if shutil.which("rbd") is None:
        raise NotSupported(f"disk {disk.id} is an image of Ceph, but this node has no rbd to map it with: install "
                           "ceph-common")
    if disk.ceph is None:
        raise BadInput(f"disk {disk.id} of VM {vm_id} is of type RBD, but has no SOURCE (pool/image of Ceph)")
    return f"{disk.ceph.image}-{vm_id}-{disk.id}" if disk.clone and not disk.save else disk.ceph.image


def connect(name: str, user: str | None, *, read_only: bool) -> Path:
    """Map the image as the disk's Ceph user, or the default one, and return its block device. Idempotent."""
    present = device(name)
    if present:
        return present
    options = ["device", "map", *(["--read-only"] if read_only else [])]
    return Path(run([*rbd(user), *options, name], TIMEOUT, f"image {name} of Ceph cannot be mapped").strip())


def disconnect(name: str) -> None:
    """Unmap the image. Idempotent."""
    present = device(name)
    if present:
        run(["rbd", "device", "unmap", str(present)], TIMEOUT, f"image {name} of Ceph cannot be unmapped")


def keep(name: str, user: str | None) -> None:
    """Take a snapshot of the image."""
    run([*rbd(user), "snap", "create", f"{name}@{SNAPSHOT}"], TIMEOUT, f"image {name} of Ceph cannot get a snapshot")


def is_kept(name: str, user: str | None) -> bool:
    told = run([*rbd(user), "snap", "list", "--format", "json", name], TIMEOUT,
               f"the snapshots of image {name} of Ceph cannot be listed")
    return any(entry["name"] == SNAPSHOT for entry in entries(told, "name"))


def bring_back(name: str, user: str | None) -> None:
    """Revert the image to the snapshot. It must not be mapped. Takes time in proportion to the image's size."""
    run([*rbd(user), "snap", "rollback", "--no-progress", f"{name}@{SNAPSHOT}"], LONG_TIMEOUT,
        f"image {name} of Ceph cannot go back to its snapshot")


def forget(name: str, user: str | None) -> None:
    run([*rbd(user), "snap", "remove", "--no-progress", f"{name}@{SNAPSHOT}"], TIMEOUT,
        f"the snapshot of image {name} of Ceph cannot be removed")


def rbd(user: str | None) -> list[str]:
    return ["rbd", *(["--id", user] if user else [])]


def entries(told: str, *keys: str) -> list[dict[str, str]]:
    """Parse a JSON list printed by rbd, whose entries have these keys."""
    try:
        return [{key: entry[key] for key in keys} for entry in json.loads(told or "[]")]
    except (ValueError, KeyError, TypeError) as error:
        raise DriverError(f"rbd did not print a list of {', '.join(keys)}: {told[:200]!r}") from error


def device(name: str) -> Path | None:
    told = run(["rbd", "device", "list", "--format", "json"], TIMEOUT, "the node's images of Ceph cannot be listed")
    return next((Path(entry["device"]) for entry in entries(told, "pool", "name", "device")
                 if f"{entry['pool']}/{entry['name']}" == name), None)
