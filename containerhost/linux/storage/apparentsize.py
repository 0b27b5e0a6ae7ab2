# SPDX-License-Identifier: Apache-2.0
"""Measure the apparent size of a container's files, including the holes of sparse files."""

import logging
import os

from containerhost.errors import HostActionFailed
from containerhost.linux.daemonnodes import home
from containerhost.linux.run import run

LOG = logging.getLogger(__name__)


def measure(server: int, pool: str, container: str, timeout: float) -> int | None:
    """Return the bytes of all files on a container's root disk, holes included.

    :param server: the daemon's process, whose mount namespace has no mounts of the tenant
    :param pool, container: the daemon's names for their directories
    :param timeout: seconds
    :returns: None if the root disk is not visible: on some pools the daemon does not mount that of a stopped
        container, and its process may be in another PID namespace
    :raises HostActionFailed: not done in time
    """
    try:
        root = f"{home(server)}/storage-pools/{pool}/containers/{container}/rootfs"
    except HostActionFailed as error:
        LOG.info("The files of container %s cannot be measured: %s", container, error)
        return None
    if not os.path.isdir(root):
        return None
    # du(1) follows no symbolic links and counts hard links once. It reports an error if files disappear meanwhile.
    done = run(("du", "--apparent-size", "--block-size=1", "--one-file-system", "--summarize", "--", root), timeout)
    total = done.stdout.partition("\t")[0]
    if not total.isdigit():
        raise HostActionFailed(f"the files of container {container} cannot be measured: {done.stderr.strip()}")
    return int(total)
