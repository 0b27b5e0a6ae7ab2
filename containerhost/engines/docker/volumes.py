# SPDX-License-Identifier: Apache-2.0
"""Mount additional disks of a container on Docker, file systems in plain files, also while it runs.

The host mounts them, and the container sees them below one directory: it needs no right to mount.

The directory is a small read-only file system with a mount point for each disk: it is not safe to mount where a
tenant can write. Mounts propagate from the host to the container.
"""

import os
from contextlib import AbstractContextManager
from pathlib import Path

from containerhost.errors import DeviceInUse, HostActionFailed, SpecError
from containerhost.linux import mountapi
from containerhost.linux import run as programs
from containerhost.linux.process.processes import table
from containerhost.linux.storage import fsfreeze, growth, idmounts, loops, mountedfs
from containerhost.privileged import run
from containerhost.rollback import Rollback

PLACES = 256
KEPT_OUT = mountapi.NODEV | mountapi.NOSUID | mountapi.NOEXEC
SIZE = "64k"  # of the directory's file system; its content is empty directories
FILE_SYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs"})
TIMEOUT = 120  # s; a large file system that was not unmounted cleanly is repaired first


class Volumes:
    """Mount and unmount the additional disks of one container, also while it runs.

    :param directory: of one container; root's alone
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def prepare(self) -> None:
        """Create the mount points, replacing those of a killed call: no container uses them yet. Idempotent."""
        if self._is_ready():
            return
        self.remove()
        self.directory.mkdir(parents=True, exist_ok=True)
        mountapi.mount(str(self.directory), KEPT_OUT, "tmpfs", f"size={SIZE},nr_inodes={PLACES + 16},mode=755")
        try:
            for number in range(PLACES):
                os.mkdir(f"{self.directory}/{number}")  # the start of a container waits for all of them
            mountapi.mount(str(self.directory), mountapi.REMOUNT | mountapi.RDONLY | KEPT_OUT)
            mountapi.mount(str(self.directory), mountapi.SHARED)
        except BaseException:
            mountapi.unmount(str(self.directory))
            raise

    def _is_ready(self) -> bool:
        """Return whether the directory is mounted read-only, and mounts below it propagate."""
        return (os.path.ismount(self.directory) and bool(os.statvfs(self.directory).f_flag & os.ST_RDONLY)
                and any(field.startswith("shared:") for field in mount_of(self.directory)))

    def mount(self, number: int, file: Path, *, read_only: bool, root: tuple[int, int]) -> None:
        """Mount a disk. Idempotent; another disk at its mount point is unmounted.

        :param root: user and group to own its top directory if the host's root owns it
        :raises SpecError: the host does not mount the file's file system
        :raises DeviceInUse: a process uses the disk that was mounted there before
        :raises HostActionFailed: it cannot be mounted, or an XFS does not grow to its file's new size
            (where this host has no xfs_growfs, it stays as it is)
        """
        place = self._place(number)
        is_mounted = os.path.ismount(place)
        if is_mounted and not loops.belongs(idmounts.device_of(place), file):
            self.unmount(number)
            is_mounted = False
        with Rollback(f"mount of {file}") as undo:
            if not is_mounted:
                self._mount(place, file, read_only)
                undo.on_error("its mount", self.unmount, number)
            if read_only:
                return
            growth.fill_xfs(place, file, TIMEOUT)
        status = place.stat()
        if root != (0, 0) and (status.st_uid, status.st_gid) == (0, 0):
            os.chown(place, *root)

    def _mount(self, place: Path, file: Path, read_only: bool) -> None:
        if not self._is_ready():
            raise HostActionFailed(f"{self.directory} is not a place to mount at: stop the container and start it "
                                   "again")
        kind = file_system(file)
        if kind not in FILE_SYSTEMS:
            raise SpecError(f"{file} has {kind or 'no file system'}; a container can have {', '.join(FILE_SYSTEMS)}")
        own = idmounts.OPTIONS["xfs" if kind == "xfs" else "ext4"]
        options = ["nodev", "nosuid", *(f"{key}={value}" if value else key for key, value in own.items())]
        mode = "--read-only" if read_only else "--rw"  # without it, mount may fall back to read-only
        # Set up the loop device here: mount would open the file again by its path, which may lead to another file by
        # then.
        with loops.over(file, 0, 0, read_only=read_only) as node:
            run(["mount", mode, "-t", kind, "-o", ",".join(options), "--", node, str(place)], TIMEOUT)

    def unmount(self, number: int) -> None:
        """Unmount a disk. Idempotent.

        :raises DeviceInUse: a process uses it
        """
        place = self._place(number)
        if not os.path.ismount(place):
            return
        mountedfs.thaw(place)
        try:
            run(["umount", str(place)], TIMEOUT)
        except HostActionFailed as error:
            if "busy" in str(error):
                raise DeviceInUse(f"the disk at {place} is in use: a program in the container has a file of it open, "
                                  "or its working directory there; end that first") from error
            raise

    def grow(self, number: int, file: Path, size: int) -> None:
        """Enlarge a mounted file system and its file; on an error both stay as they were.

        :param size: bytes
        :raises HostActionFailed: nothing is mounted there, or it cannot grow while it is mounted
        """
        place = self._place(number)
        mount_of(place)  # that something is
        with growth.lengthened(file, size, place):
            growth.fill_mounted(place, file, TIMEOUT)

    def frozen(self, number: int, timeout: float) -> AbstractContextManager[None]:
        """Freeze a mounted file system within the block; see :mod:`fsfreeze`.

        :param timeout: maximum duration in seconds
        """
        return fsfreeze.frozen(self._place(number), timeout)

    def mounted(self) -> frozenset[int]:
        return frozenset(number for number in range(PLACES) if os.path.ismount(self.directory / str(number)))

    def remove(self) -> None:
        """Unmount all disks of a container that has ended."""
        for number in sorted(self.mounted()):
            self.unmount(number)
        if os.path.ismount(self.directory):
            mountapi.unmount(str(self.directory))

    def _place(self, number: int) -> Path:
        if not 0 <= number < PLACES:
            raise SpecError(f"a container has no place for a disk number {number}; there are {PLACES}")
        return self.directory / str(number)


def file_system(file: Path) -> str:
    """Return the type of the file system in a file; empty if it has none or is unreadable.

    :raises HostActionFailed: this host cannot determine it
    """
    return programs.run(["blkid", "--probe", "--output", "value", "--match-tag", "TYPE", str(file)],
                        TIMEOUT).stdout.strip()


def mount_of(place: Path) -> list[str]:
    """Return the fields of a mount's line of /proc/self/mountinfo (proc(5)).

    ``id parent device root place options shared:… - type source …``"""
    found = [fields for line in table(os.getpid(), "mountinfo") if (fields := line.split(" "))[4] == str(place)]
    if not found:
        raise HostActionFailed(f"nothing is mounted at {place}")
    return found[-1]
