# SPDX-License-Identifier: Apache-2.0
"""Decide which node has a VM during a live migration, by the reference of its root disk in the shared datastore.

The source names itself in ``disk.0``, and copies the root. It offers the VM by a file beside the disk that refers to
the complete copy and names the destination. The destination takes the VM by renaming that file to ``disk.0``, the
source withdraws the offer by removing it, and only one of both succeeds. So the VM belongs to the node that ``disk.0``
names, and its data is complete there.
"""

import dataclasses
import os
from pathlib import Path

from containerhost.linux.files import atomic_write
from onedock import imageref
from onedock.imageref import ImageRef
from onedriver.errors import DriverError
from onedriver.node import datastores, vmlock
from onedriver.node.names import PREFIX, name

OFFERED = ".offered"  # suffix
# In the VM's own directory on a node.
MOVING = "moving"  # during a live migration: the path of the root disk
IMAGES = "images"  # those of the root disk than which the container is not older
LEFT = "left"  # what the container wrote, if the VM has one, is in its disk or needed no more


def own_node() -> str:
    return os.uname().nodename


def read(file: Path) -> ImageRef:
    """Read the reference of a disk in a directory of another user."""
    with datastores.opened(file) as disk:
        return imageref.read(disk.path)


def write(file: Path, ref: ImageRef) -> None:
    with datastores.created(file) as new:
        new.write_text(imageref.text(ref), encoding="utf-8")


def claim(file: Path, node: str | None = None) -> None:
    """Name the node, by default this one, in a disk that no other node can take now. Idempotent."""
    ref, wanted = read(file), node or own_node()
    if ref.node != wanted:
        write(file, dataclasses.replace(ref, node=wanted))


def require_here(file: Path, ref: ImageRef) -> None:
    """Raise DriverError if another node has the VM."""
    if ref.node not in (None, own_node()):
        store, vm_id = file.parts[-3:-1]
        raise DriverError(f"the VM is on node {ref.node} since a live migration: migrate it there (onevm migrate) and "
                          f"resume it; or let its data leave there (docker stop {PREFIX}{vm_id}; onedock leave {vm_id} "
                          f"{store}), then repeat this. To start it from the data of its disk here, after that node is "
                          f'lost and its container of the VM deleted or never to return, remove "node" from {file}')


def offer(file: Path, ref: ImageRef) -> None:
    """Offer the VM to the node that a reference of the complete copy names."""
    write(offered(file), ref)


def withdraw(file: Path) -> str | None:
    """Withdraw the offer. Idempotent.

    :returns: the node that has the VM; None if the disk names none
    :raises BadInput, DriverError: this is unknown
    """
    try:
        with datastores.open_directory(file.parent) as directory:
            directory.unlink(offered(file).name)
    except FileNotFoundError:
        pass  # the disk is read next
    except OSError as error:
        raise datastores.unwritable(error) from error
    return read(file).node


def take(file: Path) -> None:
    """Take the VM that another node offers to this one.

    :raises BadInput, DriverError: it is not offered, or no longer
    """
    if read(offered(file)).node != own_node():
        raise DriverError(f"{offered(file)} names another node than {own_node()}")
    try:
        with datastores.open_directory(file.parent) as directory:
            directory.rename(offered(file).name, file.name)
    except FileNotFoundError as error:
        raise DriverError("the VM is no longer offered: its source has cancelled the migration") from error
    except OSError as error:
        raise datastores.unwritable(error) from error


def offered(file: Path) -> Path:
    return file.with_name(f"{file.name}{OFFERED}")


def accept(state: Path, vm_id: int, *images: str) -> None:
    """Record that the VM's container on this node is as new as a root disk with one of these images, or newer.

    :param state: the driver's directory
    """
    home = state / name(vm_id)
    home.mkdir(parents=True, exist_ok=True)
    atomic_write(home / IMAGES, " ".join(images).encode())


def require_newest(state: Path, vm_id: int, image: str) -> None:
    """Refuse a container of this node if the VM's root disk was written elsewhere since it started.

    :param state: the driver's directory
    :param image: that the root disk names
    :raises DriverError: each may have what the other lacks
    """
    home = state / name(vm_id)
    try:
        accepted = (home / IMAGES).read_text(encoding="ascii").split()
    except FileNotFoundError:
        return  # no container, or one of an earlier release
    if image not in accepted and not (home / LEFT).exists():
        raise DriverError(f"nothing is overwritten: container {name(vm_id)} of this node is older than the VM's root "
                          "disk, which was written elsewhere since. Save what is needed of it (docker cp), remove "
                          f"it as root with `onedock drop {vm_id}`, and repeat this")


def interrupted(state: Path) -> tuple[int, ...]:
    """Return the ids of the VMs whose live migration to or from this node was interrupted.

    :param state: the driver's directory
    """
    found = (path.parent.name.removeprefix(PREFIX) for path in state.glob(f"{PREFIX}*/{MOVING}"))
    return tuple(vm_id for vm_id in map(int, filter(str.isdecimal, found)) if not vmlock.is_held(state, vm_id))
