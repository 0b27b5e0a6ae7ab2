# SPDX-License-Identifier: Apache-2.0
"""Append what a container wrote, as further layers, to an archive of its image by `docker save`.

Docker itself writes all layers of an image anew. Format: Docker's image specification v1.2.
"""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, NamedTuple, cast

from containerhost.engines.docker import layerwriter
from containerhost.engines.docker.layerwriter import NOTHING, UNBOUNDED, Bounds, Entries, Target

MANIFEST: Final = "manifest.json"
INDEX: Final = "index.json"  # of OCI; Docker since version 25 writes both
LAYER, CONFIG = "written-{}.tar", "written-{}.json"  # of the image's number of layers
END: Final = bytes(2 * tarfile.BLOCKSIZE)
MAPPING: Final = frozenset({"name=userns", "name=rootless"})  # the files have other owners then


class Appended(NamedTuple):
    """Describe an archive that got a layer.

    :ivar image: id of the image that it has now
    :ivar offset: where an archive begins of the layer and the image's configuration alone, in bytes
    :ivar entries: what its layers have of the container's files
    """

    image: str
    offset: int
    entries: Entries


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


def append(archive: Path, upper: Path, described: Mapping[str, Any] | None = None, before: Entries = NOTHING,
           began: int | None = None, bounds: Bounds = UNBOUNDED) -> Appended:
    """Append a layer, and the configuration and manifest of the image that has it.

    :param archive: of the container's image, and of layers that were appended
    :param described: Docker's description of an image that it made of the container, whose configuration and time of
        creation it gets; None keeps those of the archive. Its id differs, because the layers' headers differ
    :param before, began: of :func:`layerwriter.write`
    :param bounds: of the layer
    """
    return _append(archive, lambda layer: layerwriter.write(upper, layer, before, began), described, bounds)


def flatten(archive: Path, described: Mapping[str, Any], export: Callable[[Target], None],
            bounds: Bounds = UNBOUNDED) -> str:
    """Write an archive of an image whose one layer is the root of a container.

    :param archive: a new file
    :param described: Docker's description of the container's image
    :param export: writes the root as a tar archive
    :param bounds: of the root
    :returns: the image's id
    :raises TarError: the root's archive is incomplete
    """
    config = {"architecture": described["Architecture"], "os": described["Os"], "config": described["Config"],
              "created": described["Created"], "rootfs": {"type": "layers", "diff_ids": []}}
    with archive.open("wb") as file, tarfile.open(fileobj=file, mode="w:") as saved:
        _add(saved, CONFIG.format(0), json.dumps(config).encode())
        _add(saved, MANIFEST, json.dumps([{"Config": CONFIG.format(0), "RepoTags": None, "Layers": []}]).encode())

    def write(layer: "Digested") -> Entries:
        # A layer whose first name begins like a compressed file would be decompressed.
        begin, top = layer.file.tell(), tarfile.TarInfo("./")
        top.type, top.mode = tarfile.DIRTYPE, 0o755
        layer.write(top.tobuf(tarfile.GNU_FORMAT))
        export(layer)
        require_complete(layer.file, begin)
        return NOTHING

    return _append(archive, write, None, bounds).image


def require_complete(file: BinaryIO, begin: int = 0) -> None:
    """Raise TarError unless a tar archive has its end, that of the file, where this leaves its position.

    Docker ends an answer as usual where it cannot read on, perhaps with an error's text.

    :param begin: where it begins, in bytes
    """
    file.seek(begin)
    with tarfile.open(fileobj=file, mode="r:") as archive:
        while archive.next() is not None:
            cast(Any, archive).members.clear()  # tarfile keeps them all
        file.seek(archive.offset)
        if file.read(len(END)) != END or file.seek(0, os.SEEK_END) % tarfile.BLOCKSIZE:
            raise tarfile.ReadError("Docker has ended its archive too early; see its log")


def _append(archive: Path, write: Callable[["Digested"], Entries], described: Mapping[str, Any] | None, bounds: Bounds
            ) -> Appended:
    with tarfile.open(archive, "r:") as saved:
        (image,) = json.load(_content(saved, MANIFEST))
        config = json.load(_content(saved, image["Config"]))
        has_index, end = INDEX in saved.getnames(), saved.offset
    number = len(image["Layers"])
    with archive.open("r+b") as file:
        file.truncate(end)
        file.seek(end + tarfile.BLOCKSIZE)
        layer = Digested(file, bounds)
        entries = write(layer)
        header = tarfile.TarInfo(LAYER.format(number))
        header.size = file.tell() - end - tarfile.BLOCKSIZE  # a tar archive: a multiple of the block
        after = file.tell()
        file.seek(end)
        file.write(header.tobuf(tarfile.GNU_FORMAT))
        file.seek(after)
        if described is not None:
            config |= {"config": described["Config"], "created": described["Created"]}
        config["rootfs"]["diff_ids"].append(f"sha256:{layer.digest.hexdigest()}")
        if config.get("history"):
            config["history"].append({"created": config.get("created"), "comment": "written by its container"})
        text = json.dumps(config).encode()
        manifest = [{"Config": CONFIG.format(number), "RepoTags": None, "Layers": [*image["Layers"], header.name]}]
        with tarfile.open(fileobj=file, mode="w:") as rest:
            _add(rest, CONFIG.format(number), text)
            _add(rest, MANIFEST, json.dumps(manifest).encode())
            if has_index:
                _add(rest, INDEX, b"{}")  # that of the container's image is no longer true
    return Appended(f"sha256:{hashlib.sha256(text).hexdigest()}", end, entries)


class Digested(Target):
    """Write to a file, with the digest of all that was written."""

    def __init__(self, file: BinaryIO, bounds: Bounds) -> None:
        super().__init__(file, bounds)
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return super().write(data)


def _content(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    return cast(IO[bytes], archive.extractfile(name))


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))
