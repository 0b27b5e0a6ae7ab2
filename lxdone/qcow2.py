"""A qcow2 disk as a raw one, by ``qemu-img``.

A qcow2 file names other files whose content shows through it, and a tenant may have written those names: each file is
looked at by itself, and the next one is only opened when it is in a datastore.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lxdone.filesystems import run
from onedriver.errors import NotSupported

INFO_LIMIT = 30  # s
LONGEST = 64  # files behind one another
FORMATS = frozenset({"raw", "qcow2"})


def to_raw(disk: Path, datastores: Path, folder: Path, limit: int) -> Path:
    """The disk's content in a file of its own, which the caller removes.

    :param datastores: the folder that everything the disk is made of must be in
    :param limit: seconds it may take
    :raises NotSupported: it is made of something else
    """
    require_within(disk, datastores)
    raw = folder / "root.raw"
    try:
        run(["qemu-img", "convert", "-U", "-f", "qcow2", "-O", "raw", str(disk), str(raw)], limit,
            f"the root disk {disk} cannot be made a raw one")
    except BaseException:
        raw.unlink(missing_ok=True)
        raise
    return raw


def require_within(disk: Path, datastores: Path) -> None:
    file: Path | None = disk
    kind = "qcow2"
    for _ in range(LONGEST):
        if file is None:
            return
        if not file.resolve().is_relative_to(datastores.resolve()):
            raise NotSupported(f"the root disk {disk} shows the content of {str(file)[:200]!r}, which is not in a "
                               f"datastore below {datastores}")
        info = json.loads(run(["qemu-img", "info", "-U", "-f", kind, "--output=json", str(file)], INFO_LIMIT,
                              f"the root disk {disk} cannot be read"))
        file, kind = behind(info, str(disk))
    raise NotSupported(f"the root disk {disk} is made of more than {LONGEST} files")


def behind(info: Mapping[str, Any], disk: str) -> tuple[Path | None, str]:
    """The file whose content shows through one file, and its format.

    :param info: what ``qemu-img info`` prints
    """
    if info.get("encrypted"):
        raise NotSupported(f"the root disk {disk} is encrypted")
    if "data-file" in info.get("format-specific", {}).get("data", {}):
        raise NotSupported(f"the root disk {disk} keeps its content in another file (data_file)")
    name = info.get("full-backing-filename") or info.get("backing-filename")
    if name is None:
        return None, ""
    kind = info.get("backing-filename-format")
    if kind not in FORMATS:
        # Guessing it would let the content of a raw file decide which files are opened.
        raise NotSupported(f"the root disk {disk} has a backing file whose format is {kind or 'not told'}; it must be "
                           "raw or qcow2")
    if not name.startswith("/"):
        raise NotSupported(f"the root disk {disk} has a backing file {name[:200]!r} that is not named by its path")
    return Path(name), kind
