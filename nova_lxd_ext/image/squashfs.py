"""What a squashfs holds, from its superblock and its listing.

Format: the kernel's Documentation/filesystems/squashfs.rst and fs/squashfs/squashfs_fs.h (version 4.0, little endian).
"""

import dataclasses
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from nova_lxd_ext.image.imageerrors import BadImage, TooLarge

MAGIC: Final = b"hsqs"
# magic, inodes, mkfs_time, block_size, fragments, compression, block_log, flags, no_ids, major, minor, root_inode,
# bytes_used, and the starts of the id, xattr, inode, directory, fragment and export tables.
SUPERBLOCK: Final = struct.Struct("<4s4I6H8Q")
MISSING_TABLE: Final = 2 ** 64 - 1

# The tenant's bytes are parsed by a separate program, so it gets no more than a listing can need.
LISTING_SECONDS: Final = 60
LISTING_MEMORY: Final = 1024 ** 3
LISTING_SIZE: Final = 512 * 1024 ** 2
PREFIX: Final = "image"
ENTRY: Final = re.compile(
    rf"(?P<type>[-dlcbps])\S{{9}} \d+/\d+ +(?:(?P<size>\d+)|\d+, *\d+) \S+ \S+ {PREFIX}/?(?P<name>.*)")


@dataclasses.dataclass(frozen=True)
class Contents:
    """:ivar size: bytes of all its files; without unsquashfs on this machine, its own length (a lower bound)
    :ivar tops: names of its first two levels, as ``etc`` and ``etc/passwd``; None without unsquashfs
    """

    size: int
    tops: set[str] | None


def contents(path: Path, limit: int | None = None) -> Contents:
    """:raises BadImage: damaged or cut short
    :raises TooLarge: more than ``limit`` bytes
    """
    used = _bytes_used(path)
    if limit is not None and used > limit:
        raise TooLarge(used, limit)
    if shutil.which("unsquashfs") is None:
        return Contents(used, None)
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as listing:
        _list(path, listing.fileno())
        listing.seek(0)
        return _summed(listing, limit)


def _bytes_used(path: Path) -> int:
    with path.open("rb") as file:
        raw = file.read(SUPERBLOCK.size)
    if len(raw) < SUPERBLOCK.size:
        raise BadImage("it is damaged: the squashfs is shorter than its superblock")
    (_, inodes, _, block_size, _, _, block_log, _, _, major, minor, _, used, *tables) = SUPERBLOCK.unpack(raw)
    if (major, minor) != (4, 0):
        raise BadImage(f"it is a squashfs of version {major}.{minor}; 4.0 is the one that can be read")
    if block_size != 1 << block_log or not inodes:
        raise BadImage("it is damaged: the squashfs superblock contradicts itself")
    length = path.stat().st_size
    if used > length or any(table > used for table in tables if table != MISSING_TABLE):
        raise BadImage(f"it is damaged: the squashfs has {length} bytes and says it has {used}")
    return int(used)


def _list(path: Path, output: int) -> None:
    limits = [f"--as={LISTING_MEMORY}", f"--cpu={LISTING_SECONDS}", f"--fsize={LISTING_SIZE}"]
    command = [sys.executable, "-m", "oslo_concurrency.prlimit", *limits, "--",
               "unsquashfs", "-p", "1", "-da", "8", "-fr", "8", "-dest", PREFIX, "-lln", os.fspath(path)]
    try:
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE, check=True,
                       timeout=2 * LISTING_SECONDS, env=os.environ | {"LC_ALL": "C.UTF-8"})
    except subprocess.TimeoutExpired as error:
        raise BadImage(f"its squashfs could not be listed within {2 * LISTING_SECONDS} seconds") from error
    except subprocess.CalledProcessError as error:
        words = error.stderr.decode("utf-8", "replace").strip().splitlines() or [f"status {error.returncode}"]
        raise BadImage(f"it is damaged: {words[-1][:200]}") from error


def _summed(lines: Iterable[str], limit: int | None) -> Contents:
    size = 0
    tops: set[str] = set()
    for line in lines:
        entry = ENTRY.match(line)
        if entry is None:
            continue
        name = entry["name"].partition(" -> ")[0] if entry["type"] == "l" else entry["name"]
        if name.count("/") < 2:
            tops.add(name)
        size += int(entry["size"]) if entry["type"] == "-" and entry["size"] else 0
        if limit is not None and size > limit:
            raise TooLarge(size, limit)
    return Contents(size, tops)
