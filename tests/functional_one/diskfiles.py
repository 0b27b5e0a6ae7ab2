# SPDX-License-Identifier: Apache-2.0
"""Disk files with a small root file system, as a transfer driver leaves them in a system datastore."""

import io
import struct
import subprocess
import tarfile
from pathlib import Path

from tests.functional.images import only_rootfs

MIB = 1 << 20
SIZE = 32 * MIB


def tree(unified: Path, directory: Path) -> Path:
    """The root file system of an LXD image, unpacked."""
    root, tar = directory / "tree", directory / "tree.tar"
    only_rootfs(unified, tar)
    with tarfile.open(tar) as archive:
        archive.extraction_filter = lambda member, path: member  # as it is; Debian 12's Python takes no ``filter``
        archive.extractall(root)
    tar.unlink()
    return root


def ext4(content: Path | None, file: Path) -> Path:
    with file.open("wb") as disk:
        disk.truncate(SIZE)
    source = ("-d", str(content)) if content else ()
    subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", *source, str(file)], check=True, capture_output=True)
    return file


def in_ext(file: Path, name: str) -> str:
    """A file of a file system that nobody has mounted."""
    return subprocess.run(["debugfs", "-R", f"cat {name}", str(file)], capture_output=True, text=True,
                          check=True).stdout


def partitioned(file_system: Path, file: Path) -> Path:
    """A disk whose second partition has this file system; the first has none."""
    entries = b"".join(struct.pack("<8B2L", 0, 0, 0, 0, 0x83, 0, 0, 0, start // 512, size // 512)
                       for start, size in ((MIB, MIB), (2 * MIB, SIZE)))
    with file.open("wb") as disk:
        disk.write(bytes(446) + entries.ljust(64, b"\0") + b"\x55\xaa")
        disk.seek(2 * MIB)
        disk.write(file_system.read_bytes())
    return file


def iso(content: Path, file: Path) -> Path:
    subprocess.run(["bsdtar", "--create", "--format=iso9660", "--file", str(file), "--directory", str(content), "."],
                   check=True, capture_output=True)
    return file


def linked_iso(directory: Path, file: Path) -> Path:
    """An archive that looks like an ISO image, with a link to a directory and a link through that one."""
    inside = bytearray(64 << 10)
    inside[32769 - 512:32769 - 512 + 5] = b"CD001"
    with tarfile.open(file, "w", format=tarfile.USTAR_FORMAT) as archive:
        member = tarfile.TarInfo("first")
        member.size = len(inside)
        archive.addfile(member, io.BytesIO(inside))
        for name, target in (("link", str(directory)), ("link/through", "/dev/null")):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    with file.open("r+b") as disk:  # the header of a tar archive before there was POSIX
        header = bytearray(disk.read(512))
        header[257:265], header[148:156] = bytes(8), b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        disk.seek(0)
        disk.write(header)
    return file


def qcow2(action: str, *arguments: str) -> None:
    subprocess.run(["qemu-img", action, "-q", "-f", "qcow2", *arguments], check=True, capture_output=True)


def loops(directory: Path) -> list[str]:
    """Loop devices over files below ``directory``, by those files."""
    listed = subprocess.run(["losetup", "--list", "--noheadings", "--output", "BACK-FILE"], check=True,
                            capture_output=True, text=True).stdout
    return sorted(line for line in map(str.strip, listed.splitlines()) if line.startswith(str(directory)))
