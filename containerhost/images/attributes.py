# SPDX-License-Identifier: Apache-2.0
"""Filter the extended attributes that an image may bring: an allow-list, each value validated.

Format of ``security.capability``: linux/capability.h, struct vfs_cap_data.
"""

import re
import struct
from collections.abc import Mapping
from typing import Final

XATTR: Final = "SCHILY.xattr."
CAPABILITY: Final = XATTR + "security.capability"
POSIX_ACLS: Final = frozenset({XATTR + "system.posix_acl_access", XATTR + "system.posix_acl_default"})
TEXT_ACLS: Final = frozenset({"SCHILY.acl.access", "SCHILY.acl.default"})
USER: Final = re.compile(re.escape(XATTR) + r"user\.[^=\0\n]{1,250}")
# acl(5), "Text forms"; archivers append the number of a named user or group.
ACL: Final = re.compile(rb"(?:(?:default:)?(?:user|group|other|mask):[A-Za-z0-9_.-]{0,32}:[r-][w-][x-](?::[0-9]{1,10})?"
                        rb"[,\n]?){1,512}")
LARGEST: Final = 65536  # bytes; the kernel's limit
VERSION_2, VERSION_3, VERSION_MASK, EFFECTIVE = 0x02000000, 0x03000000, 0xFF000000, 1


def allowed(headers: Mapping[str, str]) -> dict[str, bytes]:
    """Return the permitted ones of a member's pax headers."""
    found = {}
    for key in sorted(headers):
        if not key.startswith("SCHILY."):
            continue
        value = headers[key].encode("utf-8", "surrogateescape")
        if key == CAPABILITY:
            value = capability(value)
        elif key in TEXT_ACLS:
            value = value if ACL.fullmatch(value) else b""
        elif key not in POSIX_ACLS and not USER.fullmatch(key):
            continue
        if value and len(value) <= LARGEST:
            found[key] = value
    return found


def capability(value: bytes) -> bytes:
    """Return a file's capabilities without their user namespace; empty if it has none.

    The engine gives them the container's own namespace when it shifts the image's owners.
    """
    if len(value) not in (20, 24):
        return b""
    magic, *sets = struct.unpack("<5I", value[:20])
    if magic & VERSION_MASK != (VERSION_2 if len(value) == 20 else VERSION_3):
        return b""
    return struct.pack("<5I", VERSION_2 | magic & EFFECTIVE, *sets)
