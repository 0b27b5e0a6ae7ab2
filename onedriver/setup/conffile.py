"""Changes a configuration file as a whole or not at all; what it was before stays beside it."""

import os
import shutil
from pathlib import Path


def replace(path: Path, text: str, driver: str) -> None:
    """Owner and mode stay, and so does the link where it is one.

    :raises OSError: it cannot be written; it is as it was
    """
    file = path.resolve()
    shutil.copy2(file, backup(file, driver))
    write(file, text, driver)


def write(file: Path, text: str, driver: str) -> None:
    """The same without what it was before."""
    unfinished = file.with_name(f"{file.name}.{driver}-{os.getpid()}")
    try:
        shutil.copy2(file, unfinished)
        unfinished.write_text(text, encoding="utf-8")
        status = file.stat()
        os.chown(unfinished, status.st_uid, status.st_gid)
        os.replace(unfinished, file)
    finally:
        unfinished.unlink(missing_ok=True)


def backup(path: Path, driver: str) -> Path:
    return path.with_name(f"{path.name}.before-{driver}")
