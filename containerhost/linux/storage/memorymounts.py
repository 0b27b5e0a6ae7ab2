# SPDX-License-Identifier: Apache-2.0
"""Mount file systems in memory (tmpfs) that containers share, below one directory that only root can enter.

:mod:`containerhost.allocation.sharedmemory` decides which ones exist. Each has a size, and as many files at most as
    its size has pages, so that empty ones cannot take the kernel's memory. Containers with their own user id range
    use a view: an additional mount of the same file system, in which files of the container's root belong to root.
    Kernels since 6.3 map ids on a tmpfs. LXD's own ``shift`` of a disk would do the same, but LXD 5.0 probes for
    this with an empty map, which new kernels refuse.
"""

import os
import re
from contextlib import suppress
from pathlib import Path

from containerhost.errors import HostActionFailed
from containerhost.linux import mountapi
from containerhost.linux.files import closing
from containerhost.linux.storage import idmounts

MOUNTS = Path("/run/containerhost/memory")
MEMORY = re.compile(r"[a-z]{1,16}-[a-z]{1,16}-[0-9a-f]{32}")
VIEW = re.compile(rf"({MEMORY.pattern})\.[0-9a-f]{{32}}")
ANY = re.compile(rf"{MEMORY.pattern}|{VIEW.pattern}")
PAGE = 4096  # bytes


def mount(name: str, size: int) -> None:
    """Mount the memory of a job. Idempotent: does nothing if it is mounted.

    Device nodes, execution and set-user-id are disabled on it.

    :param size: bytes
    """
    target = _made(name)
    if not os.path.ismount(target):
        options = {"size": str(size), "nr_inodes": str(size // PAGE), "mode": "1777"}
        flags = mountapi.NOSUID | mountapi.NODEV | mountapi.NOEXEC
        with closing(mountapi.mounted("tmpfs", name, options, flags)) as tree:
            mountapi.place(tree, str(target))


def make_view(view: str) -> None:
    """Create the mount point of a container's view: engines refuse a missing source."""
    _made(view)


def show(view: str, ids: idmounts.IdMap | None) -> None:
    """Mount a view of a job's memory, replacing that of an earlier start. Its container is not running.

    :param ids: the container's; None where its users are the host's
    :raises HostActionFailed: the memory is not mounted, or this kernel maps no ids on it
    """
    memory, target = MOUNTS / view.partition(".")[0], _made(view)
    if not os.path.ismount(memory):
        raise HostActionFailed(f"{memory} is not mounted")
    if os.path.ismount(target):
        mountapi.unmount(str(target), lazily=True)
    with closing(mountapi.shown_again(str(memory))) as tree:
        if ids:
            with idmounts.user_namespace(ids) as namespace:
                mountapi.shift(tree, namespace)
        mountapi.place(tree, str(target))


def unmount(name: str) -> None:
    """Unmount a memory or a view, and remove its mount point; containers keep it until they end. Idempotent."""
    target = MOUNTS / name
    if os.path.ismount(target):
        mountapi.unmount(str(target), lazily=True)
    with suppress(FileNotFoundError):
        target.rmdir()


def present() -> tuple[str, ...]:
    """Return the names of the memories and views on the host, mounted or not; views first."""
    try:
        names = os.listdir(MOUNTS)
    except FileNotFoundError:
        return ()
    return (*sorted(filter(VIEW.fullmatch, names)), *sorted(filter(MEMORY.fullmatch, names)))


def _made(name: str) -> Path:
    """Create a mount point below a directory that only root can enter."""
    try:
        MOUNTS.mkdir(parents=True, exist_ok=True)
        MOUNTS.chmod(0o700)
        (MOUNTS / name).mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise HostActionFailed(f"{MOUNTS / name} cannot be made: {error.strerror}") from error
    return MOUNTS / name
