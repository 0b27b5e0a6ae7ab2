# SPDX-License-Identifier: Apache-2.0
"""Detect the format of a disk file from its first bytes. Pure."""

import enum

HEAD = 36864  # bytes to examine; the header of an ISO image follows 16 sectors of 2048 bytes


class Format(enum.Enum):
    TARBALL = "tarball"
    EXT = "ext4"  # this driver also mounts ext2 and ext3
    XFS = "xfs"
    SQUASHFS = "squashfs"
    ISO = "iso9660"
    QCOW2 = "qcow2"
    PARTITIONED = "partition table"
    UNKNOWN = "unknown"


PACKED = frozenset({Format.TARBALL, Format.SQUASHFS})
FILE_SYSTEMS = frozenset({Format.EXT, Format.XFS})  # formats that are mounted

# An ext file system leaves its first sector to a boot loader, which may end with the signature of a partition table.
MAGICS = (
    (0, b"\x1f\x8b", Format.TARBALL),  # gzip
    (0, b"\xfd7zXZ\x00", Format.TARBALL),
    (0, b"\x28\xb5\x2f\xfd", Format.TARBALL),  # zstd
    (0, b"BZh", Format.TARBALL),
    (257, b"ustar", Format.TARBALL),
    (0, b"QFI\xfb", Format.QCOW2),
    (0, b"hsqs", Format.SQUASHFS),
    (0, b"XFSB", Format.XFS),
    (1080, b"\x53\xef", Format.EXT),
    (32769, b"CD001", Format.ISO),  # before the partition table, because images for USB sticks have both
    (510, b"\x55\xaa", Format.PARTITIONED),
)


def of(head: bytes) -> Format:
    """Return the format of a disk by its first :data:`HEAD` bytes, or fewer if it is shorter."""
    return next((found for place, magic, found in MAGICS if head[place:place + len(magic)] == magic), Format.UNKNOWN)
