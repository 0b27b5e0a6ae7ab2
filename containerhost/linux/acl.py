# SPDX-License-Identifier: Apache-2.0
"""Set POSIX ACLs (acl(5)), which a file's owner may do without root."""

import os
import stat
import struct
from pathlib import Path

# linux/posix_acl_xattr.h: a version, then entries of tag, rights and id.
NAME = "system.posix_acl_access"
VERSION, ENTRY = struct.Struct("<I"), struct.Struct("<HHI")
OWNER, USER, GROUP, MASK, OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
NO_ID = 0xFFFFFFFF
READ, WRITE, ENTER = 4, 2, 1


def let_read(path: Path, user: int) -> None:
    """Permit one user to read a file or directory, whose owner may change it; all other rights are removed.

    :raises OSError: ENOTSUP on a file system without ACLs
    """
    rights = READ | ENTER if stat.S_ISDIR(path.lstat().st_mode) else READ
    entries = ((OWNER, rights | WRITE, NO_ID), (USER, rights, user), (GROUP, 0, NO_ID), (MASK, rights, NO_ID),
               (OTHER, 0, NO_ID))
    os.setxattr(path, NAME, VERSION.pack(2) + b"".join(ENTRY.pack(*entry) for entry in entries), follow_symlinks=False)
