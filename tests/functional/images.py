# SPDX-License-Identifier: Apache-2.0
"""One small root file system (busybox) as an image in every format that is accepted."""

import platform
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, cast

from containerhost.engines.lxd.images import Images
from containerhost.images import metadata
from containerhost.images.rebuild import rebuild
from tools.cloud import image

# Else busybox waits for two seconds, for processes that obey neither signal.
QUICK = "::shutdown:/bin/poweroff -f\n"
COMPRESSIONS = {"tar.gz": ("gzip", "-1"), "tar.xz": ("xz", "-0"), "tar.zst": ("zstd", "-q", "-1")}


def all_formats(directory: Path, inittab: str = "") -> dict[str, Path]:
    """Format -> file; made once in ``directory``."""
    files = {name: directory / f"busybox.{name}" for name in ("unified", *COMPRESSIONS, "squashfs")}
    if not directory.exists():
        directory.mkdir()
        image.build(files["unified"], inittab)
        tar = directory / "rootfs.tar"
        only_rootfs(files["unified"], tar)
        for name, command in COMPRESSIONS.items():
            with tar.open("rb") as source, files[name].open("wb") as target:
                subprocess.run(command, stdin=source, stdout=target, check=True)
        with tar.open("rb") as source:
            subprocess.run(["mksquashfs", "-", str(files["squashfs"]), "-tar", "-quiet", "-no-progress"], stdin=source,
                           stdout=subprocess.DEVNULL, check=True)
    return files


def imported(store: Images, file: Path, alias: str, properties: Mapping[str, str]) -> str:
    """Import an image as the drivers do, and return its fingerprint."""
    with file.open("rb") as image, tempfile.TemporaryFile() as target:
        rebuilt = rebuild(image, cast(BinaryIO, target), None, 60)
        return store.import_split(metadata.tarball(rebuilt.architecture or platform.machine()),
                                  cast(BinaryIO, target), alias, properties)


def only_rootfs(unified: Path, target: Path) -> None:
    """Write what is below rootfs/ of a unified image, as a tarball of its own."""
    with tarfile.open(unified) as source, tarfile.open(target, "w") as archive:
        for member in source:
            name = member.name.removeprefix("rootfs/")
            if name != member.name:
                member.name = name
                archive.addfile(member, source.extractfile(member) if member.isfile() else None)
