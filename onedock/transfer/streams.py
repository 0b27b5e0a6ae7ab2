# SPDX-License-Identifier: Apache-2.0
"""Stream files and directories between hosts: what `tar` writes, so that zeros need not travel."""

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from containerhost.linux.run import not_run, words
from onedock import datafiles
from onedriver.errors import BadInput, DriverError


def send(path: Path, out: BinaryIO, lock: Sequence[int] = ()) -> None:
    """Send a disk with its snapshots, or a directory.

    :param lock: file descriptors that hold a lock on the disk, for the program that reads it
    """
    if not path.exists():
        raise BadInput(f"{path} is not there")
    beside = [name for name in (path.name, datafiles.snapshots(path).name) if (path.parent / name).exists()]
    tar(["--create", "--sparse", "--directory", str(path.parent), "--", *beside], f"{path} cannot be sent", out=out,
        inherited=lock)


def receive(source: BinaryIO, name: str, target: Path) -> None:
    """Receive a disk or a directory.

    :param name: what was sent was called, ``target`` what it is to be called here, where it replaces what is there
    """
    with incoming(target.parent) as directory:
        tar(["--extract", "--sparse", "--no-same-owner", "--directory", str(directory)], f"{target} cannot be received",
            source=source)
        if not (directory / name).exists():
            raise DriverError(f"{target} cannot be received: the other side sent something else")
        # What was sent is deleted there when this has ended.
        datafiles.tool(["sync", "--file-system", str(directory)], f"{target} cannot be written to disk")
        for new, place in ((directory / name, target),
                           (datafiles.snapshots(directory / name), datafiles.snapshots(target))):
            if place.is_dir():
                shutil.rmtree(place)
            if new.exists():
                os.replace(new, place)


@contextlib.contextmanager
def incoming(parent: Path) -> Iterator[Path]:
    parent.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix=".incoming-", dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def tar(arguments: list[str], problem: str, source: BinaryIO | int = subprocess.DEVNULL,
        out: BinaryIO | int = subprocess.DEVNULL, inherited: Sequence[int] = ()) -> None:
    """Run tar between two streams.

    :raises DriverError: it failed, for instance because a disk is full; what it said is in the message
    """
    with tempfile.TemporaryFile() as complaints:
        try:
            status = subprocess.run(["tar", "--file", "-", *arguments], stdin=source, stdout=out, stderr=complaints,
                                    check=False, pass_fds=inherited).returncode
        except OSError as error:
            raise DriverError(f"{problem}: {not_run('tar', error)}") from error
        if status == -signal.SIGPIPE:
            raise BrokenPipeError(errno.EPIPE, "the other side wants no more")  # and says why
        if status:
            raise DriverError(f"{problem}: {words(complaints) or f'tar ended with status {status}'}")
