# SPDX-License-Identifier: Apache-2.0
"""Change a configuration file atomically, keeping its previous content beside it."""

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

from containerhost.linux.files import atomic_write


def replace(path: Path, text: str, driver: str) -> None:
    """Replace a file's content, or raise OSError and keep it. Owner, mode and links are preserved."""
    file = path.resolve()
    shutil.copy2(file, backup(file, driver))
    status = file.stat()
    os.chown(backup(file, driver), status.st_uid, status.st_gid)  # OpenNebula can read the backup after it is restored
    write(file, text)


def write(file: Path, text: str) -> None:
    """Write a file like :func:`replace`, without a backup."""
    status = file.stat()
    atomic_write(file, text.encode(), stat.S_IMODE(status.st_mode), (status.st_uid, status.st_gid))


def change(path: Path, how: Callable[[str], str]) -> bool:
    """Change a file's content like :func:`replace`, without a backup, and return whether ``how`` changed it."""
    file = path.resolve()
    before = file.read_text(encoding="utf-8")
    after = how(before)
    if after != before:
        write(file, after)
    return after != before


def backup(path: Path, driver: str) -> Path:
    return path.with_name(f"{path.name}.before-{driver}")
