# SPDX-License-Identifier: Apache-2.0
"""Small image files of every kind, made in memory."""

import bz2
import gzip
import io
import lzma
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

import zstandard

METADATA = b"architecture: x86_64\ncreation_date: 1\n"
ROOT = {"bin/sh": b"#!" + b"x" * 3000, "etc/hostname": b"box\n", "sbin/init": b"i" * 700}
COMPRESSORS = {"tar": bytes, "gz": gzip.compress, "xz": lzma.compress, "zst": zstandard.compress, "bz2": bz2.compress}


def tar(files: Mapping[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    """A tarball with these files, and the directories above them as members of their own."""
    raw = io.BytesIO()
    directories: set[str] = set()
    with tarfile.open(fileobj=raw, mode="w", format=form) as archive:
        for name, content in files.items():
            for directory in reversed(Path(name).parents):
                if str(directory) not in directories | {"."}:
                    directories.add(str(directory))
                    member = tarfile.TarInfo(str(directory))
                    member.type = tarfile.DIRTYPE
                    archive.addfile(member)
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return raw.getvalue()


def rootfs(files: Mapping[str, bytes] = ROOT) -> bytes:
    return tar(files)


def unified(metadata: bytes = METADATA, files: Mapping[str, bytes] = ROOT) -> bytes:
    return tar({"metadata.yaml": metadata} | {f"rootfs/{name}": content for name, content in files.items()})


class _Zeros(io.RawIOBase):
    def read(self, size: int = -1) -> bytes:
        return bytes(size)


def large_unified(size: int) -> bytes:
    """A zst tarball of a few kilobytes with a file of ``size`` zeros; never whole in memory."""
    raw = io.BytesIO()
    with (zstandard.ZstdCompressor(level=1).stream_writer(raw, closefd=False) as stream,
          tarfile.open(fileobj=stream, mode="w|") as archive):
        for name, length, content in (("metadata.yaml", len(METADATA), io.BytesIO(METADATA)),
                                      ("rootfs/bin/big", size, _Zeros())):
            member = tarfile.TarInfo(name)
            member.size = length
            archive.addfile(member, content)
    return raw.getvalue()


def squashfs(directory: Path, files: Mapping[str, bytes] = ROOT) -> bytes:
    """Needs mksquashfs; ``directory`` is an empty place to work in."""
    for name, content in files.items():
        path = directory / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    target = directory / "out.squashfs"
    subprocess.run(["mksquashfs", directory / "tree", target, "-quiet", "-noappend", "-no-progress"], check=True,
                   stdout=subprocess.DEVNULL)
    return target.read_bytes()
