# SPDX-License-Identifier: Apache-2.0
"""Identify a disk's content by its stamp, and a datastore by a mark in its directory."""

import os
import re
import secrets
from pathlib import Path

from containerhost.linux.files import Directory
from onedriver.errors import DriverError
from onedriver.node import datastores

STORE = ".lxdone"  # in the datastore's own directory: it is visible only if the datastore is mounted
IDENTITY = re.compile(r"[0-9a-f]{32}")  # its content, because the directory below an absent mount may have such a file


def stamp(file: Path) -> str:
    """Return the stamp of a disk file.

    The file is opened, because a network file system refreshes its attributes only then.

    :param file: with a path that is safe to open, see :mod:`onedriver.node.datastores`
    :raises DriverError: it cannot be read
    """
    try:
        with file.open("rb") as disk:
            found = os.fstat(disk.fileno())
    except OSError as error:
        raise DriverError(f"the root disk {file} cannot be read: {error.strerror}") from error
    return f"{found.st_ino}:{found.st_size}:{found.st_mtime_ns}"


def store_of(directory: Path) -> str:
    """Return the identity of a datastore, creating its mark for its first VM.

    :param directory: a VM's directory in it, without which no mark is created, because the datastore may not be
        mounted
    :raises DriverError: root may not write there
    """
    try:
        with datastores.open_directory(directory), datastores.open_directory(directory.parent) as store:
            if identity(store) is None:
                store.write(STORE, f"{secrets.token_hex(16)}\n".encode(), 0o644, store.owner)
            return identity(store) or ""
    except OSError as error:
        raise datastores.unwritable(error) from error


def identity(store: Directory) -> str | None:
    """Return the identity in a datastore's mark; None if the mark is missing or invalid."""
    try:
        found = store.read(STORE, datastores.MARK_LIMIT).decode(errors="replace").strip()
    except OSError:
        return None
    return found if IDENTITY.fullmatch(found) else None
