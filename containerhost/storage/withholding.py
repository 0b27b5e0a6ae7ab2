"""Taking a block device out of a running container's hands, if its hands are empty."""

import contextlib
import os
from collections.abc import Iterator

from containerhost.errors import DeviceInUse
from containerhost.privileged import Privileged
from containerhost.spec import BlockDevice


@contextlib.contextmanager
def withheld(root: Privileged, pid: int, disk: BlockDevice, mode: int) -> Iterator[None]:
    """While the block runs nobody in the container can open the device; afterwards, if it is still there, its root can.

    :param pid: the container's first process
    :param mode: of the node in the container
    :raises DeviceInUse: somebody has it open, mapped or mounted; nothing was changed
    :raises HostActionFailed: the container has hidden the node
    """
    number = number_of(disk.source)
    if number is None:
        # The device is gone from the host: nobody can use it any more.
        yield
        return
    root.withhold_block(pid, disk.path, number)
    try:
        users = root.block_users(pid, disk.path, number)
        if users:
            raise DeviceInUse(f"{disk.path} is in use by {', '.join(users)}: unmount it and end what uses it, then try "
                              "again")
        yield
    finally:
        root.restore_block(pid, disk.path, number, mode)


def number_of(node: str) -> tuple[int, int] | None:
    """Major and minor of a device node; None when it is gone."""
    try:
        device = os.stat(node).st_rdev
    except FileNotFoundError:
        return None
    return os.major(device), os.minor(device)
