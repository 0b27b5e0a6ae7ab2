"""A qcow2 disk as a raw one and back, by ``qemu-img``.

A qcow2 file names other files whose content shows through it, and a tenant may have written those names: each file is
looked at by itself, and the next one is only opened when it is in a datastore. The disk's owner can rewrite them at any
time: ``qemu-img`` runs as that user, who can lead it only to files that are his already.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from lxdone.disk import newfile
from lxdone.disk.filesystems import run
from lxdone.disk.limited import confined
from onedriver.errors import NotSupported
from onedriver.node import datastores as files

INFO_LIMIT = 30  # s
LONGEST = 64  # files behind one another
FORMATS = frozenset({"raw", "qcow2"})


def to_raw(disk: Path, datastores: Path, raw: Path, limit: int) -> None:
    """Write the disk's content into a file of its own, which is there as a whole or not at all.

    It belongs to the disk's owner, who cannot enter its folder.

    :param disk: by a path that is safe to open, see :mod:`onedriver.node.datastores`
    :param raw: in a folder of root's
    :param datastores: the folder that everything the disk is made of must be in
    :param limit: seconds it may take
    :raises NotSupported: it is made of something else, or the node has no qemu-img
    """
    require_within(disk, datastores)
    with newfile.instead_of(raw) as unfinished, unfinished.open("xb") as target:
        os.fchmod(target.fileno(), 0o600)
        os.fchown(target.fileno(), *owner(disk))
        run([*confined(limit), "qemu-img", "convert", "-U", "-f", "qcow2", "-O", "raw", str(disk.resolve()),
             own(target)], limit, f"disk {disk} cannot be made a raw one", **as_owner(disk, target))


def from_raw(raw: Path, disk: Path, datastores: Path, limit: int, ready: Callable[[Path], None] | None = None) -> None:
    """Let a qcow2 disk have the content of ``raw``, over the same backing file as before.

    :param ready: is shown the new file before it takes the old one's place
    """
    with (files.opened(disk) as old, raw.open("rb") as source, files.replaced(disk, ready) as unfinished,
          unfinished.open("wb") as target):
        base, kind = require_within(old.path, datastores)
        over = ["-B", str(base), "-F", kind] if base else []
        os.fchown(source.fileno(), *owner(old.path))
        run([*confined(limit), "qemu-img", "convert", "-f", "raw", "-O", "qcow2", *over, own(source),
             own(target)], limit, f"disk {disk} cannot be written", **as_owner(old.path, source, target))


def own(file: BinaryIO) -> str:
    """The name of an inherited file for the program that inherits it."""
    return f"/proc/self/fd/{file.fileno()}"


def owner(disk: Path) -> tuple[int, int]:
    found = disk.stat()
    return found.st_uid, found.st_gid


def as_owner(disk: Path, *inherited: BinaryIO) -> dict[str, Any]:
    """Options of :class:`subprocess.Popen`."""
    uid, gid = owner(disk)
    user = {} if uid == os.geteuid() else {"user": uid, "group": gid, "extra_groups": ()}
    return {"cwd": "/", "pass_fds": [file.fileno() for file in inherited], **user}


def require_within(disk: Path, datastores: Path) -> tuple[Path | None, str]:
    """:returns: the file right behind the disk and its format
    """
    if shutil.which("qemu-img") is None:
        raise NotSupported(f"disk {disk} is a qcow2 image, but this node has no qemu-img to read it with: install "
                           "qemu-utils, or let the datastore keep raw images")
    first: tuple[Path | None, str] | None = None
    file: Path | None = disk
    kind = "qcow2"
    for _ in range(LONGEST):
        if file is None:
            return first or (None, "")
        if not file.resolve().is_relative_to(datastores.resolve()):
            raise NotSupported(f"disk {disk} shows the content of {str(file)[:200]!r}, which is not in a "
                               f"datastore below {datastores}")
        info = json.loads(run([*confined(INFO_LIMIT), "qemu-img", "info", "-U", "-f", kind, "--output=json",
                               str(file.resolve())], INFO_LIMIT, f"disk {disk} cannot be read", **as_owner(disk)))
        file, kind = behind(info, str(disk))
        first = first or (file, kind)
    raise NotSupported(f"disk {disk} is made of more than {LONGEST} files")


def behind(info: Mapping[str, Any], disk: str) -> tuple[Path | None, str]:
    """The file whose content shows through one file, and its format.

    :param info: what ``qemu-img info`` prints
    """
    if info.get("encrypted"):
        raise NotSupported(f"disk {disk} is encrypted")
    if "data-file" in info.get("format-specific", {}).get("data", {}):
        raise NotSupported(f"disk {disk} keeps its content in another file (data_file)")
    name = info.get("full-backing-filename") or info.get("backing-filename")
    if name is None:
        return None, ""
    kind = info.get("backing-filename-format")
    if kind not in FORMATS:
        # Guessing it would let the content of a raw file decide which files are opened.
        raise NotSupported(f"disk {disk} has a backing file whose format is {kind or 'not told'}; it must be "
                           "raw or qcow2")
    if not name.startswith("/"):
        raise NotSupported(f"disk {disk} has a backing file {name[:200]!r} that is not named by its path")
    return Path(name), kind
