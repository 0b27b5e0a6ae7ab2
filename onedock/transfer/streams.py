# SPDX-License-Identifier: Apache-2.0
"""Stream files and directories between hosts: what `tar` writes, so that zeros need not travel."""

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from containerhost.linux.run import start, words
from onedock import datafiles
from onedriver.errors import BadInput, DriverError
from onedriver.node import pipes

CHUNK = 1 << 16  # bytes


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
        datafiles.put_in_place(directory / name, target)


@contextlib.contextmanager
def incoming(parent: Path) -> Iterator[Path]:
    parent.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix=".incoming-", dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def tar(arguments: list[str], problem: str, source: BinaryIO | None = None, out: BinaryIO | None = None,
        inherited: Sequence[int] = ()) -> None:
    """Run tar between two streams. One of them that does not move ends it.

    :raises DriverError: it failed, for instance because a disk is full; what it said is in the message
    """
    with tempfile.TemporaryFile() as complaints:
        # No `with`: a program that waits in the kernel for its storage is not waited for.
        process = start(["tar", "--file", "-", *arguments], problem, DriverError, bufsize=0, stderr=complaints,
                        stdin=subprocess.PIPE if source else subprocess.DEVNULL,
                        stdout=subprocess.PIPE if out else subprocess.DEVNULL, pass_fds=inherited)
        try:
            if source and process.stdin:
                with contextlib.suppress(BrokenPipeError), pipes.writer(process.stdin, problem) as sink:
                    shutil.copyfileobj(source, sink, CHUNK)
            if out and process.stdout:
                with pipes.reader(process.stdout, problem) as content:
                    shutil.copyfileobj(content, out, CHUNK)
            status = process.wait(pipes.STALL_TIMEOUT)
        except subprocess.TimeoutExpired as error:
            raise DriverError(f"{problem}: tar does not end; does the storage hang?") from error
        finally:
            process.kill()
        if status:
            raise DriverError(f"{problem}: {words(complaints) or f'tar ended with status {status}'}")
