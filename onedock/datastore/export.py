# SPDX-License-Identifier: Apache-2.0
"""Export an image as an archive in the format of `docker save`, which an engine loads."""

import io
import json
import tarfile
from pathlib import Path
from typing import BinaryIO

from onedock.datastore import content, digests
from onedock.datastore.store import CONFIG


def write(directory: Path, out: BinaryIO) -> None:
    """Write an image as an archive.

    :param directory: of the image, see store.py
    :param out: need not be seekable
    """
    config = (directory / CONFIG).read_bytes()
    layers = [digest.partition(":")[2] for digest in content.diff_ids(config, str(directory))]
    name = f"{digests.of(config).partition(':')[2]}.json"
    manifest = [{"Config": name, "RepoTags": None, "Layers": [f"{layer}.tar" for layer in layers]}]
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.GNU_FORMAT) as archive:
        add(archive, name, config)
        add(archive, "manifest.json", json.dumps(manifest).encode())
        for layer in dict.fromkeys(layers):
            with (directory / layer).open("rb") as file:
                member = tarfile.TarInfo(f"{layer}.tar")
                member.size = (directory / layer).stat().st_size
                archive.addfile(member, file)


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))
