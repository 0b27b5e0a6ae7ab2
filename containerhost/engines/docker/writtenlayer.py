# SPDX-License-Identifier: Apache-2.0
"""Append what a stopped container wrote, as one more layer, to an archive of its image by `docker save`.

Docker itself writes all layers of an image anew. Formats: Docker's image specification v1.2; whiteouts and opaque
directories of overlayfs (the kernel's filesystems/overlayfs.rst).
"""

import errno
import hashlib
import io
import json
import math
import os
import stat
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, cast

MANIFEST: Final = "manifest.json"
INDEX: Final = "index.json"  # of OCI; Docker since version 25 writes both
LAYER, CONFIG = "written.tar", "written.json"
WHITEOUT: Final = ".wh."
OPAQUE: Final = ".wh..wh..opq"
CAPABILITY: Final = "security.capability"  # the only extended attribute that Docker itself takes along
MAPPING: Final = frozenset({"name=userns", "name=rootless"})  # the files have other owners then
OVERLAY_OPAQUE: Final = "trusted.overlay.opaque"


def upper_directory(info: Mapping[str, Any], container: Mapping[str, Any]) -> Path | None:
    """Return the directory with what a container wrote; None if it is not what a layer has.

    :param info, container: Docker's descriptions of itself and of the container
    """
    status, driver = info.get("DriverStatus") or (), container.get("GraphDriver") or {}
    mapped = {option.partition(",")[0] for option in info.get("SecurityOptions") or ()} & MAPPING
    if (driver.get("Name") != "overlay2" or mapped or ["Native Overlay Diff", "true"] not in status
            or ["Using metacopy", "true"] in status):
        return None
    upper = Path(driver["Data"]["UpperDir"])
    return upper if upper.is_dir() else None


def append(archive: Path, upper: Path, described: Mapping[str, Any]) -> str:
    """Append a layer, and the configuration and manifest of the image that has it.

    :param archive: of the container's image alone
    :param described: Docker's description of an image with the same layers, which it made of the container
    :returns: the image's id, which is not that of Docker's: the layers' headers differ
    """
    with tarfile.open(archive, "r:") as saved:
        (image,) = json.load(_content(saved, MANIFEST))
        config = json.load(_content(saved, image["Config"]))
        has_index, end = INDEX in saved.getnames(), saved.offset
    with archive.open("r+b") as file:
        file.seek(end + tarfile.BLOCKSIZE)
        layer = Digested(file)
        write(upper, cast(BinaryIO, layer))
        header = tarfile.TarInfo(LAYER)
        header.size = file.tell() - end - tarfile.BLOCKSIZE  # a tar archive: a multiple of the block
        after = file.tell()
        file.seek(end)
        file.write(header.tobuf(tarfile.GNU_FORMAT))
        file.seek(after)
        config |= {"config": described["Config"], "created": described["Created"]}
        config["rootfs"]["diff_ids"].append(f"sha256:{layer.digest.hexdigest()}")
        if config.get("history"):
            config["history"].append({"created": described["Created"], "comment": "written by its container"})
        text = json.dumps(config).encode()
        manifest = [{"Config": CONFIG, "RepoTags": None, "Layers": [*image["Layers"], LAYER]}]
        with tarfile.open(fileobj=file, mode="w:") as rest:
            _add(rest, CONFIG, text)
            _add(rest, MANIFEST, json.dumps(manifest).encode())
            if has_index:
                _add(rest, INDEX, b"{}")  # that of the container's image is no longer true
    return f"sha256:{hashlib.sha256(text).hexdigest()}"


class Digested:
    """Write to a file, with the digest of all that was written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return self._file.write(data)


def _content(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    return cast(IO[bytes], archive.extractfile(name))


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def write(upper: Path, target: BinaryIO) -> None:
    """Write the layer: a container that wrote it must not run, and no link is followed.

    :raises OSError: it cannot be read, or written
    """
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as layer:
        pending = ["./"]  # a layer whose first name begins like a compressed file would be decompressed
        while pending:
            place = pending.pop()
            with os.scandir(upper / place) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
            for entry in found:
                # As part of a layer a tenant's file of such a name would remove another.
                if not entry.name.startswith(WHITEOUT) and _write_entry(layer, entry.path, place, entry.name):
                    pending.append(f"{place}{entry.name}/")
            layer.members.clear()  # type: ignore[attr-defined]  # tarfile keeps them all


def _write_entry(layer: tarfile.TarFile, path: str, place: str, name: str) -> bool:
    """Write a file, link or node, and return whether it is a directory."""
    info = layer.gettarinfo(path, place + name)
    if info is None:  # a socket
        return False
    info.uname = info.gname = ""
    info.mtime = math.floor(info.mtime)  # as Docker has it; tarfile writes 10 µs as 1e-05, which Docker refuses
    if info.ischr() and info.devmajor == info.devminor == 0:
        layer.addfile(tarfile.TarInfo(f"{place}{WHITEOUT}{name}"))
        return False
    if info.isreg():
        if capability := _attribute(path, CAPABILITY):
            info.pax_headers = {f"SCHILY.xattr.{CAPABILITY}": capability.decode("utf-8", "surrogateescape")}
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(f"{path} is not a file any more")
            layer.addfile(info, file)
        return False
    layer.addfile(info)
    if info.isdir() and _attribute(path, OVERLAY_OPAQUE) == b"y":
        layer.addfile(tarfile.TarInfo(f"{place}{name}/{OPAQUE}"))
    return info.isdir()


def _attribute(path: str, name: str) -> bytes:
    try:
        return os.getxattr(path, name, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP):
            raise
        return b""
