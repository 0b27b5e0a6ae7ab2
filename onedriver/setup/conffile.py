# SPDX-License-Identifier: Apache-2.0
"""Changes a configuration file as a whole or not at all; what it was before stays beside it."""

import os
import shutil
import stat
import tempfile
from pathlib import Path


def replace(path: Path, text: str, driver: str) -> None:
    """Owner and mode stay, and so does the link where it is one.

    :raises OSError: it cannot be written; it is as it was
    """
    file = path.resolve()
    shutil.copy2(file, backup(file, driver))
    status = file.stat()
    os.chown(backup(file, driver), status.st_uid, status.st_gid)  # OpenNebula can read it when it is moved back
    write(file, text, driver)


def write(file: Path, text: str, driver: str) -> None:
    """The same without what it was before."""
    status = file.stat()
    handle, unfinished = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.{driver}-")
    try:
        with open(handle, "w", encoding="utf-8") as target:
            target.write(text)
            os.fchmod(handle, stat.S_IMODE(status.st_mode))
            os.fchown(handle, status.st_uid, status.st_gid)
        os.replace(unfinished, file)
    finally:
        Path(unfinished).unlink(missing_ok=True)


def backup(path: Path, driver: str) -> Path:
    return path.with_name(f"{path.name}.before-{driver}")
