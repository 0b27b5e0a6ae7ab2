# SPDX-License-Identifier: Apache-2.0
"""Find disks of type BLOCK: links of OpenNebula's ``fs_lvm`` and ``dev`` transfer drivers to block devices of the host.

oneadmin owns the links. The administrator permits their targets (option ``block_devices``): otherwise oneadmin could
read and write every disk of the host through a VM.
"""

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from onedriver.errors import DriverError, NotSupported
from onedriver.node import datastores


def device(file: Path, allowed: Sequence[str]) -> Path | None:
    """Return the block device of a disk; None if the disk is not a link into /dev.

    :param allowed: patterns of paths
    :raises NotSupported: the device is not permitted
    :raises DriverError: it is missing
    """
    try:
        with datastores.open_directory(file.parent) as directory:
            target = os.path.normpath(os.readlink(file.name, dir_fd=directory.fd))
    except OSError as error:
        if error.errno == errno.EINVAL:  # not a symbolic link
            return None
        raise DriverError(f"disk {file} cannot be opened: {error.strerror}") from error
    if not target.startswith("/dev/"):
        return None
    if not any(PurePosixPath(target).match(pattern) for pattern in allowed):
        raise NotSupported(f"disk {file} is a link to {target[:200]!r}, which is not among the devices that this node "
                           f"permits for VMs: {', '.join(allowed) or 'none'} (option block_devices)")
    found = Path(os.path.realpath(target))  # safe: only root can create links in /dev
    if not found.is_relative_to("/dev") or not stat.S_ISBLK(found.stat().st_mode):
        raise DriverError(f"disk {file} is a link to {target}, which is {found}, not a block device")
    return found
