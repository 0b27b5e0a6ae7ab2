# SPDX-License-Identifier: Apache-2.0
"""Convert a qcow2 disk to a raw one and back by ``qemu-img``.

A qcow2 file names backing files, and a tenant may have written those names, and may know the paths of other tenants'
disks: so each file is inspected separately, and its backing file is opened only if it belongs to the VM, or to the
image of the disk. The disk's owner can rewrite them at any time, so ``qemu-img`` runs as that user, who can redirect
it only to its own files.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from containerhost.linux.files import replacing
from containerhost.linux.run import confined
from onedriver.errors import NotSupported
from onedriver.node import datastores as files
from onedriver.node import room
from onedriver.node.programs import run

INFO_TIMEOUT = 30  # s
LONGEST = 64  # maximum length of a chain of backing files
FORMATS = frozenset({"raw", "qcow2"})
SNAPSHOTS = ".snap"  # suffix of the directory with the snapshots of an image or a disk
MIB = 1 << 20


class Origin(NamedTuple):
    """Restrict the backing files of a qcow2 disk.

    :ivar datastores: the directory that must contain all files
    :ivar image: SOURCE of the disk's image; None if it has none
    :ivar size: bytes according to OpenNebula; None if unknown
    :ivar seen: whether it was inspected at the deployment of the VM, and no tenant could change it since: only
        ``datastores`` counts
    """

    datastores: Path
    image: str | None = None
    size: int | None = None
    seen: bool = False

    def require(self, disk: Path, file: Path) -> None:
        """Raise NotSupported if ``file`` is not permitted as backing file of the disk."""
        real = file.resolve()
        if not real.is_relative_to(self.datastores.resolve()):
            raise NotSupported(f"disk {disk} has the backing file {str(file)[:200]!r}, which is not in a "
                               f"datastore below {self.datastores}")
        if not self.seen and self._of(real) not in {self._of(disk.resolve()), image_of(self.image)}:
            raise NotSupported(f"disk {disk} has the backing file {str(file)[:200]!r}, which is neither the VM's own "
                               "nor part of the disk's image: register an image without a backing file "
                               "(qemu-img convert)")

    def _of(self, file: Path) -> tuple[str, ...]:
        """Return the datastore of a file, and the VM or image in it."""
        return owner_of(*file.relative_to(self.datastores.resolve()).parts[:2])


def image_of(source: str | None) -> tuple[str, ...]:
    """Return the datastore and the image of a SOURCE; the front-end's directory may differ from the node's."""
    return owner_of(*PurePosixPath(os.path.normpath(source)).parts[-2:]) if source else ()


def owner_of(datastore: str, *entry: str) -> tuple[str, ...]:
    return (datastore, *(name.removesuffix(SNAPSHOTS) for name in entry))


def to_raw(disk: Path, origin: Origin, raw: Path, timeout: int) -> None:
    """Write the disk's content into a separate file, atomically.

    It belongs to the disk's owner, who cannot enter its directory.

    :param disk: with a path that is safe to open, see :mod:`onedriver.node.datastores`
    :param raw: in a directory of root
    :param timeout: seconds it may take
    :raises NotSupported: it has another backing file, or is too large, or the node lacks qemu-img
    """
    size = inspected(disk, origin).size
    if origin.size is not None and size > origin.size + MIB:
        raise NotSupported(f"disk {disk} is a qcow2 image of {size >> 20} MiB, but according to OpenNebula it has "
                           f"{origin.size >> 20} MiB: register the image again with its SIZE")
    with replacing(raw, f"{raw.name}.lxdone-unfinished") as unfinished, unfinished.open("xb") as target:
        os.fchmod(target.fileno(), 0o600)
        os.fchown(target.fileno(), *owner(disk))
        run([*confined(timeout, written=size), "qemu-img", "convert", "-U", "-f", "qcow2", "-O", "raw",
             str(disk.resolve()), own(target)], timeout, f"disk {disk} cannot be made a raw one",
            **as_owner(disk, target))


def from_raw(raw: Path, disk: Path, datastores: Path, timeout: int, ready: Callable[[Path], None]
             | None = None) -> None:
    """Replace the content of a qcow2 disk by ``raw``, over the same backing file; ``ready`` gets the new file first."""
    with files.opened(disk) as old, files.replaced(disk, ready) as unfinished:
        base, kind, _ = inspected(old.path, Origin(datastores, seen=True))
        write(raw, unfinished, timeout, ["-B", str(base), "-F", kind] if base else [])


def write(raw: Path, new: Path, timeout: int, over: Sequence[str] = ()) -> None:
    """Write the content of ``raw`` into a new file as a qcow2 image.

    :param new: with a path that is safe to open; owned by the disk's user
    :param timeout: seconds it may take
    :param over: options that name a backing file; without them the image has none
    :raises DriverError: it cannot be written, or would use the space that other disks need to grow
    """
    if not over:  # else write only the differences to the backing file
        room.require(new, room.allocated(raw))
    with raw.open("rb") as source, new.open("wb") as target:
        os.fchown(source.fileno(), *owner(new))
        run([*confined(timeout), "qemu-img", "convert", "-f", "raw", "-O", "qcow2", *over, own(source), own(target)],
            timeout, f"disk {new} cannot be written", **as_owner(new, source, target))


def own(file: BinaryIO) -> str:
    """Return the path of an inherited file for the child program."""
    return f"/proc/self/fd/{file.fileno()}"


def owner(disk: Path) -> tuple[int, int]:
    found = disk.stat()
    return found.st_uid, found.st_gid


def as_owner(disk: Path, *inherited: BinaryIO) -> dict[str, Any]:
    """Return options of :class:`subprocess.Popen` to run as the file's owner."""
    uid, gid = owner(disk)
    user = {} if uid == os.geteuid() else {"user": uid, "group": gid, "extra_groups": ()}
    return {"cwd": "/", "pass_fds": [file.fileno() for file in inherited], **user}


class Found(NamedTuple):
    """Hold the virtual size of a qcow2 disk, and its backing file."""

    base: Path | None
    kind: str
    size: int


def inspected(disk: Path, origin: Origin) -> Found:
    """Inspect every file of a disk; raise NotSupported if one of them is not permitted."""
    if shutil.which("qemu-img") is None:
        raise NotSupported(f"disk {disk} is a qcow2 image, but this node has no qemu-img to read it with: install "
                           "qemu-utils, or let the datastore keep raw images")
    first: Found | None = None
    file, kind = disk, "qcow2"
    for _ in range(LONGEST):
        origin.require(disk, file)
        info = json.loads(run([*confined(INFO_TIMEOUT), "qemu-img", "info", "-U", "-f", kind, "--output=json",
                               str(file.resolve())], INFO_TIMEOUT, f"disk {disk} cannot be read", **as_owner(disk)))
        base, kind = behind(info, str(disk))
        first = first or Found(base, kind, int(info["virtual-size"]))
        if base is None:
            return first
        file = base
    raise NotSupported(f"disk {disk} is made of more than {LONGEST} files")


def behind(info: Mapping[str, Any], disk: str) -> tuple[Path | None, str]:
    """Return the backing file of a disk's file, and its format, from the output of ``qemu-img info``."""
    if info.get("encrypted"):
        raise NotSupported(f"disk {disk} is encrypted")
    if "data-file" in info.get("format-specific", {}).get("data", {}):
        raise NotSupported(f"disk {disk} keeps its content in another file (data_file)")
    name = info.get("full-backing-filename") or info.get("backing-filename")
    if name is None:
        return None, ""
    kind = info.get("backing-filename-format")
    if kind not in FORMATS:
        # Guessing the format would let the content of a raw file choose which files are opened.
        raise NotSupported(f"disk {disk} has a backing file whose format is {kind or 'unknown'}; it must be "
                           "raw or qcow2")
    if not name.startswith("/"):
        raise NotSupported(f"disk {disk} has a backing file {name[:200]!r} that is not named by its path")
    return Path(name), kind
