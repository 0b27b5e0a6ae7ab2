"""What this node knows of a VM's root: which disk it is of, and which of both is newer.

While a container runs, its root is newer than the disk in OpenNebula's datastore. The node's own record in the VM's
folder says so, and a mark beside the disk tells the same to other nodes, which may see the datastore too.

A stamp tells one content of a disk from another. A disk with another stamp than the record's was changed by somebody
else: OpenNebula moved, reverted or enlarged it, or the VM ran on another node.
"""

import dataclasses
import json
import os
from pathlib import Path

from lxdone.disk import newfile
from onedriver.errors import DriverError

FILE = "root.json"  # in the VM's folder on the node
RUNNING = "lxdone.running"  # in its folder in the datastore: which node has a newer root
STORE = ".lxdone"  # in the datastore's own folder: who sees it sees the datastore, not the place where it is to be


@dataclasses.dataclass(frozen=True)
class RootRecord:
    """:ivar file: the disk's place in OpenNebula's datastore
    :ivar size: bytes that OpenNebula wants it to have
    :ivar persistent: it is to stay what it is, whatever was written
    :ivar image: of Ceph, that it is instead of a file
    :ivar user: of Ceph
    :ivar stamp: of the disk as the root was made of it, or written to it
    :ivar coming: of a disk that is about to take its place
    :ivar unsaved: the root is newer than the disk
    """

    file: str
    size: int
    persistent: bool
    image: str | None
    user: str | None
    stamp: str
    coming: str | None = None
    unsaved: bool = True

    @property
    def folder(self) -> Path:
        """The VM's, in the datastore."""
        return Path(self.file).parent

    def is_of(self, stamp: str) -> bool:
        return stamp in (self.stamp, self.coming)


def read(home: Path) -> RootRecord | None:
    """:param home: the VM's folder on the node
    :raises DriverError: there is something else
    """
    file = home / FILE
    try:
        return RootRecord(**json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise DriverError(f"{file} is no record of this driver ({error}): find out whether the container's root is "
                          "newer than the VM's disk, keep what is needed, and remove the file") from error


def write(home: Path, record: RootRecord) -> None:
    with newfile.instead_of(home / FILE) as unfinished:
        unfinished.write_text(json.dumps(dataclasses.asdict(record)), encoding="utf-8")


def stamp(file: Path) -> str:
    """Of a disk that is a file; opened, because a network's file system only then looks at what is there.

    :raises DriverError: it cannot be read
    """
    try:
        with file.open("rb") as disk:
            found = os.fstat(disk.fileno())
    except OSError as error:
        raise DriverError(f"the root disk {file} cannot be read: {error.strerror}") from error
    return f"{found.st_ino}:{found.st_size}:{found.st_mtime_ns}"


def mark(record: RootRecord) -> None:
    """Tell other nodes that this one's root is newer, and let the datastore be known when it is seen again.

    :raises DriverError: root may not write there
    """
    try:
        (record.folder.parent / STORE).touch()
        file = record.folder / RUNNING
        file.write_text(f"{os.uname().nodename}\n", encoding="utf-8")
        status = record.folder.stat()
        os.chown(file, status.st_uid, status.st_gid)
        newfile.synced(record.folder)
    except OSError as error:
        raise DriverError(f"the datastore cannot be written: {error}; the driver is root on the node: export shared "
                          "datastores with no_root_squash") from error


def unmark(record: RootRecord) -> None:
    try:
        (record.folder / RUNNING).unlink(missing_ok=True)
        newfile.synced(record.folder)
    except FileNotFoundError:
        return  # OpenNebula removed the folder
    except OSError as error:
        raise DriverError(f"the datastore cannot be written: {error}") from error


def elsewhere(folder: Path, record: RootRecord | None) -> str | None:
    """The node that has a newer root than the disk, if that is not this one.

    :param folder: the VM's, in the datastore
    """
    if record and record.unsaved:
        return None
    try:
        return (folder / RUNNING).read_text(encoding="utf-8").strip()[:64] or "another"
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise DriverError(f"{folder / RUNNING} cannot be read: {error}") from error


def is_over(record: RootRecord) -> bool:
    """Whether OpenNebula ended the VM, or moved it away, and nothing of it is needed here. Only certain when the
    datastore is surely there and the root is in the disk that went."""
    store = record.folder.parent
    if record.unsaved or record.coming or not (store / STORE).is_file():
        return False
    try:
        os.lstat(record.folder)
    except FileNotFoundError:
        return (store / STORE).is_file()
    except OSError:
        return False
    return elsewhere(record.folder, record) is not None
