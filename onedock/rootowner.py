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

from onedock import imageref
from onedock.imageref import ImageRef
from onedriver.errors import DriverError
from onedriver.node import datastores, vmlock
from onedriver.node.names import PREFIX

OFFERED = ".offered"  # suffix
MOVING = "moving"  # in the VM's own directory on a node, during a live migration: the path of the root disk


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


def unsettled(state: Path) -> tuple[int, ...]:
    """Return the ids of the VMs whose live migration to or from this node was interrupted.

    :param state: the driver's directory
    """
    found = (path.parent.name.removeprefix(PREFIX) for path in state.glob(f"{PREFIX}*/{MOVING}"))
    return tuple(vm_id for vm_id in map(int, filter(str.isdecimal, found)) if not vmlock.is_held(state, vm_id))
