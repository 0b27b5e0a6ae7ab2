# SPDX-License-Identifier: Apache-2.0
"""Create the image of the self-test: an empty root with read-only mounts of the host's programs and libraries.

So a host without images can be tested, and the vendors' tools and libraries match its drivers.
"""

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

from containerhost.engines.spec import Mount

INIT = "/sbin/init"  # started by LXD
PROGRAM = b"#!/bin/sh\ntrap 'exit 0' TERM INT PWR\nwhile :; do sleep 3600 & wait $!; done\n"
DIRECTORIES = ("dev", "etc", "proc", "root", "run", "sbin", "sys", "tmp", "usr", "var")
PROGRAMS = ("bin", "lib", "lib32", "lib64")  # links below /usr on most hosts
# Libraries and tools of drivers are links to /etc/alternatives on Debian, or are in /opt; libibverbs loads the drivers
# listed in /etc/libibverbs.d, and finds no device without them.
SHOWN = ("usr", *PROGRAMS, "opt", "etc/alternatives", "etc/libibverbs.d")


def mounts(root: Path = Path("/")) -> tuple[Mount, ...]:
    """Return the host's directories that a container of the image mounts."""
    return tuple(Mount(path.replace("/", "-").partition(".")[0], f"/{path}", f"/{path}") for path in SHOWN
                 if (root / path).is_dir() and not (root / path).is_symlink())


def tarball(root: Path = Path("/")) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for member, content in _members(root):
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return raw.getvalue()


def _members(root: Path) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    for name in dict.fromkeys((*DIRECTORIES, *SHOWN)):
        member = tarfile.TarInfo(name)
        member.mode, member.type = 0o755, tarfile.DIRTYPE
        if (root / name).is_symlink():
            member.type, member.linkname = tarfile.SYMTYPE, os.readlink(root / name)
        if name != "sbin" and (name in DIRECTORIES or (root / name).is_dir()):
            yield member, b""
    directory = tarfile.TarInfo("sbin")
    directory.mode, directory.type = 0o755, tarfile.DIRTYPE
    yield directory, b""
    init = tarfile.TarInfo(INIT[1:])
    init.mode = 0o755
    yield init, PROGRAM
