# SPDX-License-Identifier: Apache-2.0
"""Stream files and directories between hosts by `tar`, so that zeros are not transferred."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from onedock import datafiles
from onedriver.errors import BadInput, DriverError
from onedriver.node import room
from onedriver.node.programs import run
from onedriver.node.tarstream import tar

COPY_TIMEOUT = 12 * 3600  # s; the disks of a VM may be large


def send(path: Path, out: BinaryIO, lock: Sequence[int] = ()) -> None:
    """Send a disk with its snapshots, or a directory; its reader inherits the descriptors of a ``lock`` on it."""
    if not path.exists():
        raise BadInput(f"{path} is not there")
    beside = [name for name in (path.name, datafiles.snapshots(path).name) if (path.parent / name).exists()]
    tar(["--create", "--sparse", "--directory", str(path.parent), "--", *beside], f"{path} cannot be sent", out=out,
        inherited=lock)


def receive(source: BinaryIO, name: str, target: Path) -> None:
    """Receive a disk or a directory that was sent as ``name``, replacing ``target``."""
    with incoming(target.parent) as directory:
        tar(["--extract", "--sparse", "--no-same-owner", "--directory", str(directory)], f"{target} cannot be received",
            source=source)
        if not (directory / name).exists():
            raise DriverError(f"{target} cannot be received: the other side sent something else")
        put_in_place(directory / name, target)


def copy(path: Path, target: Path) -> None:
    """Copy a directory of this host sparsely; raise DriverError if other disks need the space to grow."""
    with incoming(target.parent) as directory:
        room.require(directory, sum(room.allocated(file) for file in path.rglob("*") if file.is_file()))
        run(["cp", "--archive", "--sparse=always", "--", str(path), str(directory)], COPY_TIMEOUT,
            f"{path} cannot be copied")
        put_in_place(directory / path.name, target)


def put_in_place(new: Path, target: Path) -> None:
    """Replace a disk or a directory by ``new``, which is first made durable: its source is removed afterwards."""
    datafiles.tool(["sync", "--file-system", str(new)], f"{target} cannot be written to disk")
    datafiles.put_in_place(new, target)


@contextlib.contextmanager
def incoming(parent: Path) -> Iterator[Path]:
    parent.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix=".incoming-", dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
