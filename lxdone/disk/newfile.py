# SPDX-License-Identifier: Apache-2.0
"""A file's new content, which takes the old one's place as a whole and on the disk, or not at all."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

UNFINISHED = ".lxdone-unfinished"


@contextlib.contextmanager
def instead_of(file: Path, ready: Callable[[Path], None] | None = None) -> Iterator[Path]:
    """The name to write to; when the block ends without an error, that file becomes ``file``, with its owner and mode.

    What a killed process left under that name is overwritten by the next. Only one process at a time may do this.

    :param ready: is shown the new file, to which nothing happens any more, before it takes its place
    """
    unfinished = file.with_name(file.name + UNFINISHED)
    unfinished.unlink(missing_ok=True)
    try:
        yield unfinished
        if file.exists():
            status = file.stat()
            os.chown(unfinished, status.st_uid, status.st_gid)
            shutil.copymode(file, unfinished)
        synced(unfinished)
        if ready:
            ready(unfinished)
        os.replace(unfinished, file)
        synced(file.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def synced(path: Path) -> None:
    """Wait until the file, or the folder's list of names, is on the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
