# SPDX-License-Identifier: Apache-2.0
"""Start the worker that rebuilds an image, and read its result. This module parses no file of a tenant."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, cast

import containerhost
from containerhost.errors import EngineError, EngineTimeout
from containerhost.images import source
from containerhost.images.errors import BadImage, TooLarge
from containerhost.images.rootfs import Format, Rebuilt
from containerhost.linux.poll import is_readable
from containerhost.linux.run import KILL_TIMEOUT, limited

PIECE: Final = 1 << 20
UNPACKED_LIMIT: Final = 1 << 40  # bytes; the default limit of an image
RESULT_LIMIT: Final = 64 << 10  # bytes
WORKER: Final = "containerhost.images.worker"
# It needs no network; all its processes end with the first one of its PID namespace.
ISOLATED: Final = ("unshare", "--net", "--ipc", "--pid", "--fork", "--")

TOOLS: Final = ("unshare", "zstd", *sorted({command[0] for command in source.PROGRAMS.values()} - {"zstd"}))


def rebuild(image: BinaryIO, target: BinaryIO, limit: int | None, timeout: int) -> Rebuilt:
    """Write a new archive of an image's root file system.

    :param image: a file at its beginning, or the reading end of a pipe with a plain tar
    :param target: an empty file for the new archive, packed with zstd
    :param limit: bytes the image may have unpacked; reading stops there
    :param timeout: seconds it may take
    :raises BadImage: it is damaged, hostile, or not bootable as a container
    :raises TooLarge: it has more than ``limit`` bytes unpacked
    """
    most = UNPACKED_LIMIT if limit is None else limit
    with readable(image, target) as content, started(
            ("rootfs", str(most)), timeout, stdin=content, stdout=target) as worker:
        found = worker.result()
    return Rebuilt(Format(found["format"]), int(found["unpacked"]), found["architecture"])


@contextlib.contextmanager
def readable(image: BinaryIO, target: BinaryIO) -> Iterator[BinaryIO]:
    """Copy a squashfs that only root may read for the worker, whose program opens it by name.

    :raises EngineError: the copy cannot be written
    """
    if not (source.head(image.fileno()) or b"").startswith(source.SQUASHFS) or os.geteuid() != 0:
        yield image
        return
    directory = Path(os.readlink(f"/proc/self/fd/{target.fileno()}")).parent
    with contextlib.ExitStack() as stack:
        try:
            copy = stack.enter_context(tempfile.TemporaryFile(dir=directory))
            os.fchmod(copy.fileno(), 0o444)
            shutil.copyfileobj(image, copy, 1 << 20)
            copy.flush()
        except OSError as error:
            raise EngineError(f"rebuild an image: it cannot be copied to {directory}: {error}") from error
        yield cast(BinaryIO, copy)


def layers(archive: BinaryIO, image: str, timeout: int, present: Sequence[str] = ()
           ) -> contextlib.AbstractContextManager["Worker"]:
    """Read the new archive of one image while it is rebuilt.

    :param archive: a file at the beginning of an archive, or the reading end of a pipe
    :param image: the engine's id of it
    :param timeout: seconds it may take
    :param present: digests of layers that the engine has, and the archive may lack
    """
    return started(("layers", image, *present), timeout, stdin=archive, stdout=subprocess.PIPE)


class Worker:
    """Manage a process that rebuilds an image. As a reader it ends only with a complete image."""

    def __init__(self, process: subprocess.Popen[bytes], timeout: int) -> None:
        self._process = process
        self._timeout = timeout
        self._end = time.monotonic() + timeout + KILL_TIMEOUT

    def __iter__(self) -> Iterator[bytes]:
        return iter(lambda: self.read(PIECE), b"")

    def read(self, size: int = -1, /) -> bytes:
        """Return the next piece of the new archive.

        :raises BadImage: the archive is damaged, or lacks a part of the image
        """
        piece = self._read(self._process.stdout, size)
        if not piece:
            self.result()
        return piece

    def _read(self, pipe: IO[bytes] | None, size: int) -> bytes:
        """Return what comes next from a pipe, which a killed process in state D keeps open."""
        if not is_readable(pipe, max(0.0, self._end - time.monotonic())):
            raise self._late()
        return cast(IO[bytes], pipe).read(size)

    def _said(self) -> bytes:
        said = b""
        while len(said) < RESULT_LIMIT and (piece := self._read(self._process.stderr, RESULT_LIMIT - len(said))):
            said += piece
        return said

    def _late(self) -> EngineTimeout:
        return EngineTimeout(f"rebuild an image: not done within {self._timeout} s")

    def result(self) -> dict[str, Any]:
        """Wait for its end and return its result.

        :raises BadImage, TooLarge, EngineTimeout, EngineError: it failed
        """
        said = self._said().decode("utf-8", "replace").strip()
        try:
            status = self._process.wait(self._timeout)
        except subprocess.TimeoutExpired:  # it was killed, but is in state D
            status = -signal.SIGKILL
        try:
            found = json.loads(said.rpartition("\n")[2])
            if "size" in found:
                raise TooLarge(int(found["size"]), int(found["limit"]))
            if "bad" in found:
                raise BadImage(str(found["bad"]))
            if status == 0:
                return dict(found)
        except (ValueError, TypeError, KeyError):
            pass
        if status in (-signal.SIGKILL, -signal.SIGXCPU):
            raise self._late()
        raise EngineError(f"rebuild an image: {' '.join(said.split())[-500:] or f'status {status}'}")


@contextlib.contextmanager
def started(words: Sequence[str], timeout: int, **streams: Any) -> Iterator[Worker]:
    command = (*(ISOLATED if os.geteuid() == 0 else ()), sys.executable, "-m", WORKER, *words, str(timeout))
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1",
                   "PYTHONPATH": str(Path(containerhost.__file__).parent.parent)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, cwd="/", env=environment, process_group=0, bufsize=0,
                               **streams)
    # The kernel clears its parent-death signal when it gives up root.
    with limited(process, timeout):
        yield Worker(process, timeout)
