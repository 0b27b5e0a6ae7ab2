# SPDX-License-Identifier: Apache-2.0
"""Record the state of a VM's root on this node: which disk it is of, and which of both is newer.

While a container runs, its root is newer than the disk in OpenNebula's datastore. The node's own record in the VM's
directory says so, and a mark beside the disk says the same to other nodes, which may see the datastore too.

Root trusts its own record. The mark is a hint of the datastore's owner, who could also start the VM or remove its disk.

A disk with another stamp than the record's was changed elsewhere: OpenNebula moved, reverted or enlarged it, or the VM
ran on another node.
"""

import dataclasses
import os
import re
from pathlib import Path

from containerhost.linux import records
from containerhost.linux.files import atomic_write
from lxdone.disk import stamps
from onedriver.errors import DriverError
from onedriver.node import datastores

FILE = "root.json"  # in the VM's directory on the node
VERSION = 2  # of that file
RUNNING = "lxdone.running"  # in its directory in the datastore: which node has a newer root
NODE = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclasses.dataclass(frozen=True)
class RootState:
    """Record which disk a VM's root is of, and whether the root has changes that the disk lacks.

    :ivar file: the disk's place in OpenNebula's datastore
    :ivar size: bytes that OpenNebula wants it to have
    :ivar persistent: it is to stay what it is, whatever was written
    :ivar image: of Ceph, that it is instead of a file
    :ivar user: of Ceph
    :ivar stamp: of the disk as the root was made of it, or written to it; empty until its container first starts
    :ivar coming: of a disk that is about to take its place
    :ivar unsaved: the root is newer than the disk
    :ivar store: identity of the datastore; None in records of earlier releases
    """

    file: str
    size: int
    persistent: bool
    image: str | None
    user: str | None
    stamp: str
    coming: str | None = None
    unsaved: bool = True
    store: str | None = None

    @property
    def directory(self) -> Path:
        """Return the VM's directory in the datastore."""
        return Path(self.file).parent

    def is_of(self, stamp: str) -> bool:
        return stamp in (self.stamp, self.coming)


def read(home: Path) -> RootState | None:
    """Read a VM's root state.

    :param home: the VM's directory on the node
    :raises DriverError: there is something else
    """
    file = home / FILE
    try:
        return records.parsed(RootState, file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise DriverError(f"{file} is no record of this driver ({error}): find out whether the container's root is "
                          "newer than the VM's disk, keep what is needed, and remove the file") from error


def write(home: Path, record: RootState) -> None:
    file = home / FILE
    atomic_write(file, records.replacing(file, dataclasses.asdict(record), VERSION).encode())


def mark(record: RootState) -> None:
    """Notify other nodes that this one's root is newer; raise DriverError if root may not write there."""
    try:
        with datastores.open_directory(record.directory) as directory:
            directory.write(RUNNING, f"{os.uname().nodename}\n".encode(), 0o644, directory.owner)
    except OSError as error:
        raise datastores.unwritable(error) from error


def unmark(record: RootState) -> None:
    try:
        with datastores.open_directory(record.directory) as directory:
            directory.unlink(RUNNING)
    except FileNotFoundError:
        return  # OpenNebula removed the directory
    except OSError as error:
        raise datastores.unwritable(error) from error


def elsewhere(directory: Path, record: RootState | None) -> str | None:
    """Return the node that has a newer root than the disk in this directory, if that is not this one."""
    if record and record.unsaved:
        return None
    try:
        with datastores.open_directory(directory) as opened:
            node = opened.read(RUNNING, datastores.MARK_LIMIT, owner=os.fstat(opened.fd).st_uid)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DriverError(f"{directory / RUNNING} cannot be read: {error.strerror}; it must be a small file of the "
                          "directory's owner: remove what is there") from error
    found = node.decode(errors="replace").strip()
    return found if NODE.fullmatch(found) else "another"


def is_ended(record: RootState) -> bool:
    """Return whether OpenNebula surely removed the VM's directory: nothing needs any more what the container wrote."""
    try:
        return datastores.is_gone(record.directory.parent, stamps.STORE, record.store, record.directory.name)
    except DriverError:
        return False


def is_over(record: RootState) -> bool:
    """Return whether the root is in its disk, and OpenNebula surely ended or moved the VM: nothing is needed here."""
    if record.unsaved or record.coming:
        return False
    try:
        return datastores.is_gone(record.directory.parent, stamps.STORE, record.store, record.directory.name) or (
            elsewhere(record.directory, record) is not None)
    except DriverError:
        return False
