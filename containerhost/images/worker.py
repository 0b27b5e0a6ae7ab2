# SPDX-License-Identifier: Apache-2.0
"""Rebuild the image on standard input to standard output.

    rootfs LIMIT SECONDS
    layers IMAGE LAYER… SECONDS    without the layers that the engine has

Runs with minimal rights; see :func:`confine`. The end of standard error is its result as JSON.
"""

import contextlib
import ctypes
import dataclasses
import functools
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import IO, Any, BinaryIO, Final, NoReturn, cast

from containerhost.images import layers, source
from containerhost.images.errors import BadImage, TooLarge
from containerhost.images.members import Stream
from containerhost.images.rootfs import Rebuild
from containerhost.images.writer import Writer

NOBODY: Final = 65534
MEMORY: Final = 1 << 30  # bytes of address space of this process and of each child
FILES: Final = 64
LEAST: Final = 60  # s of CPU time for an image, in addition to those for its size
RATE: Final = 8 << 20  # bytes of the unpacked image for each further second
GRACE: Final = 5  # s of CPU time after the soft limit, before the kernel kills it
PR_SET_NO_NEW_PRIVS: Final = 38
COMPRESS: Final = ("zstd", "-1", "--quiet", "--stdout", "--single-thread")
ARCHIVE_LIMIT: Final = 1 << 40  # bytes; the archive is not compressed, so its length is the limit


def confine(seconds: int) -> None:
    """Drop root's rights, and limit memory and processor time to the needs of an image.

    :raises OSError: the kernel refuses; nothing of the image was read
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for limit, most in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CPU, seconds + GRACE), (resource.RLIMIT_CORE, 0),
                        (resource.RLIMIT_NOFILE, FILES)):
        hard = resource.getrlimit(limit)[1]
        value = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (value - GRACE if limit == resource.RLIMIT_CPU else value, value))
    signal.signal(signal.SIGXCPU, functools.partial(_refuse_costly, seconds))
    if os.geteuid() == 0:
        os.setgroups(())
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")


def _refuse_costly(seconds: int, number: int, _: Any) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # the kernel repeats it every second
    raise BadImage(f"reading it takes more than {seconds} s of a processor")


def main(words: list[str]) -> int:
    seconds = int(words[-1])
    confine(min(seconds, LEAST + int(words[1]) // RATE) if words[0] == "rootfs" else seconds)
    try:
        result = rootfs(int(words[1])) if words[0] == "rootfs" else archive(words[1], words[2:-1])
    except TooLarge as error:
        result = {"size": error.size, "limit": error.limit}
    except BadImage as error:
        result = {"bad": str(error)}
    except MemoryError:
        result = {"bad": f"reading it takes more than {MEMORY} bytes of memory"}
    sys.stderr.write("\n" + json.dumps(result))
    return 0 if "bad" not in result and "size" not in result else 1


def rootfs(limit: int) -> dict[str, Any]:
    start = source.head(0)
    squashed = start is not None and start.startswith(source.SQUASHFS)
    # The tar stream made of a squashfs has headers of its own, which do not count.
    allowed = limit + SLACK if squashed else limit
    with compressed() as target, source.opened(0, start) as tar:
        writer = Writer(target)
        rebuilt = Rebuild(Stream(tar, allowed), writer, squashed=squashed).run()
    if rebuilt.unpacked > limit:
        raise TooLarge(rebuilt.unpacked, limit)
    return dataclasses.asdict(rebuilt)


SLACK: Final = 4 << 30  # bytes


@contextlib.contextmanager
def compressed() -> Iterator[BinaryIO]:
    """Compress standard output at the lowest level: it is unpacked once per container."""
    process = subprocess.Popen(COMPRESS, stdin=subprocess.PIPE, bufsize=1 << 20)
    pipe = cast(IO[bytes], process.stdin)
    try:
        yield cast(BinaryIO, pipe)
        pipe.close()
        if process.wait() != 0:
            raise OSError("the new image cannot be written: is there room?")
    finally:
        process.kill()
        process.wait()
        # Data left in the buffer after a failure is discarded.
        with contextlib.suppress(BrokenPipeError):
            pipe.close()


def archive(image: str, present: list[str]) -> dict[str, Any]:
    with open(0, "rb", buffering=1 << 20, closefd=False) as tar, open(1, "wb", buffering=1 << 20) as target:
        layers.rebuild(Stream(tar, ARCHIVE_LIMIT), Writer(target), image, present)
    return {}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
