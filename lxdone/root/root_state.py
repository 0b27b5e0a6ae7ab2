# SPDX-License-Identifier: Apache-2.0
"""Record the state of a VM's root on this node: its disk, and which of both is newer.

While a container runs, its root is newer than the disk in OpenNebula's datastore. The node's own record in the VM's
directory states that, and so does a mark beside the disk for other nodes, which may share the datastore.

Root trusts its own record. The mark is a hint of the datastore's owner, who could also start the VM or remove its disk.

A disk with another stamp than the record's was changed elsewhere: OpenNebula moved, reverted or enlarged it, or the VM
ran on another node.

A live migration moves the root, and keeps the disk unchanged. The source offers the root by a file beside the mark.
The destination takes it by renaming that file to the mark, the source retracts it by removing it, and only one of
both succeeds: once the mark names the destination, the root belongs to it.
"""

import dataclasses
import os
import re
from pathlib import Path

from containerhost.linux import records
from containerhost.linux.files import Directory, atomic_write
from lxdone.disk import stamps
from onedriver.errors import DriverError
from onedriver.node import datastores

FILE = "root.json"  # in the VM's directory on the node
VERSION = 2  # version of that file
RUNNING = "lxdone.running"  # in the root's directory in the datastore: the node that has a newer root
OFFERED = "lxdone.offered"  # the same, after the destination of a live migration has taken over
NODE = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclasses.dataclass(frozen=True)
class RootState:
    """Record the disk of a VM's root, and whether the root has changes that the disk lacks.

    :ivar file: the disk's path in OpenNebula's datastore
    :ivar size: bytes required by OpenNebula
    :ivar persistent: whether its format must be kept
    :ivar stamp: of the disk when the root was created from it, or written to it; empty until its container first
        starts
    :ivar coming: of a disk that is about to replace it
    :ivar unsaved: whether the root is newer than the disk
    :ivar store: identity of the datastore; None in records of earlier releases
    :ivar peer: the other node of a live migration of the root, which belongs to the node that the mark names
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
    peer: str | None = None

    @property
    def directory(self) -> Path:
        """Return the VM's directory in the datastore."""
        return Path(self.file).parent

    def is_of(self, stamp: str) -> bool:
        return stamp in (self.stamp, self.coming)


def read(home: Path) -> RootState | None:
    """Read a VM's root state.

    A root that belongs to the other node of a live migration counts as absent here.

    :raises DriverError: the record is malformed, or the mark cannot be read
    """
    file = home / FILE
    try:
        record = records.parsed(RootState, file.read_text(encoding="utf-8"))
        return record if record.peer is None or is_here(record) else dataclasses.replace(record, unsaved=False)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise DriverError(f"{file} is not a record of this driver ({error}): find out whether the container's root "
                          "is newer than the VM's disk, save the needed data, and remove the file") from error


def write(home: Path, record: RootState) -> None:
    file = home / FILE
    atomic_write(file, records.replacing(file, dataclasses.asdict(record), VERSION).encode())


def mark(record: RootState, node: str | None = None, file: str = RUNNING) -> None:
    """Notify other nodes that the root of a node, by default this one, is newer.

    :raises DriverError: root may not write there
    """
    try:
        with datastores.open_directory(record.directory) as directory:
            directory.write(file, f"{node or os.uname().nodename}\n".encode(), 0o644, directory.owner)
    except OSError as error:
        raise datastores.unwritable(error) from error


def offer(record: RootState, node: str) -> None:
    """Offer the root to a node, until it is retracted."""
    mark(record, node, OFFERED)


def retract(record: RootState) -> None:
    """Retract the offer of the root. Idempotent: does nothing if it was taken, or not offered."""
    try:
        with datastores.open_directory(record.directory) as directory:
            directory.unlink(OFFERED)
    except FileNotFoundError:
        return
    except OSError as error:
        raise datastores.unwritable(error) from error


def take(record: RootState) -> None:
    """Take the root that another node offers to this one.

    :raises DriverError: it is no longer offered
    """
    try:
        with datastores.open_directory(record.directory) as directory:
            if named(directory, OFFERED) != os.uname().nodename:
                raise DriverError(f"{record.directory / OFFERED} names another node than {os.uname().nodename}")
            directory.rename(OFFERED, RUNNING)
    except FileNotFoundError as error:
        raise DriverError("the root of the VM is no longer offered: its source has cancelled the migration") from error
    except OSError as error:
        raise datastores.unwritable(error) from error


def unmark(record: RootState) -> None:
    try:
        with datastores.open_directory(record.directory) as directory:
            directory.unlink(RUNNING)
    except FileNotFoundError:
        return  # OpenNebula has removed the directory
    except OSError as error:
        raise datastores.unwritable(error) from error


def elsewhere(directory: Path, record: RootState | None) -> str | None:
    """Return the other node that has a newer root than the disk in this directory, if any."""
    if record and record.unsaved:
        return None
    try:
        with datastores.open_directory(directory) as opened:
            return named(opened, RUNNING)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(directory, error) from error


def named(directory: Directory, file: str) -> str:
    """Return the node that a mark names; raise OSError without one."""
    found = directory.read(file, datastores.MARK_LIMIT, owner=os.fstat(directory.fd).st_uid).decode(
        errors="replace").strip()
    return found if NODE.fullmatch(found) else "another"


def unreadable(directory: Path, error: OSError) -> DriverError:
    return DriverError(f"{directory / RUNNING} cannot be read: {error.strerror}; it must be a small file of the "
                       "directory's owner: remove what is there")


def is_here(record: RootState) -> bool:
    """Return whether the mark names this node; True without the VM's directory, so that the root stays."""
    try:
        with datastores.open_directory(record.directory) as directory:
            try:
                return named(directory, RUNNING) == os.uname().nodename
            except FileNotFoundError:
                return False
    except FileNotFoundError:
        return True
    except OSError as error:
        raise unreadable(record.directory, error) from error


def is_ended(record: RootState) -> bool:
    """Return whether OpenNebula certainly removed the VM's directory: the container's data is no longer needed."""
    try:
        return datastores.is_gone(record.directory.parent, stamps.STORE, record.store, record.directory.name)
    except DriverError:
        return False


def is_over(record: RootState) -> bool:
    """Return whether the root is saved, and OpenNebula certainly ended or moved the VM: nothing is needed here."""
    if record.unsaved or record.coming:
        return False
    try:
        return datastores.is_gone(record.directory.parent, stamps.STORE, record.store, record.directory.name) or (
            elsewhere(record.directory, record) is not None)
    except DriverError:
        return False
