# SPDX-License-Identifier: Apache-2.0
"""Run programs of the host without a shell, and with a time limit unless they must outlive the caller."""

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import IO, Any, BinaryIO, cast

from containerhost.errors import HostActionFailed
from containerhost.linux.poll import is_readable

Failure = Callable[[str], Exception]  # makes the exception from a message

SAID = 300  # characters of a program's output in an error
MEMORY = 1 << 30  # bytes of address space
CHECK_MEMORY = 4 << 30  # bytes; checking or enlarging a file system needs maps of it
STACK = 8 << 20  # bytes for each thread; qemu-img starts up to 64
FILES = 256  # open files; a qcow2 disk may consist of 64
HELD = b"frozen\n"
RELEASE_TIMEOUT = 60.0  # s
KILL_TIMEOUT = 1.0  # s for a killed program to end, unless it is in state D

# Packages of Debian and Ubuntu, and of Fedora and RHEL if different.
PACKAGES = {
    "blkid": "util-linux", "bzip2": "bzip2", "e2fsck": "e2fsprogs", "gzip": "gzip",
    "ip": "iproute2 (iproute)", "mke2fs": "e2fsprogs", "mkfs.ext4": "e2fsprogs",
    "mount": "util-linux (util-linux-core)", "ovs-vsctl": "openvswitch-switch (openvswitch)",
    "partx": "util-linux (util-linux-core)",
    "prlimit": "util-linux (util-linux-core)",
    "qemu-img": "qemu-utils (qemu-img)", "rbd": "ceph-common", "rdma": "iproute2 (iproute)", "resize2fs": "e2fsprogs",
    "runc": "runc, or Docker's containerd.io", "setpriv": "util-linux", "sfdisk": "fdisk (util-linux)",
    "sqfs2tar": "squashfs-tools-ng", "ssh": "openssh-client (openssh-clients)", "sudo": "sudo", "tar": "tar",
    "tc": "iproute2 (iproute-tc)",
    "unshare": "util-linux (util-linux-core)", "unsquashfs": "squashfs-tools", "xfs_growfs": "xfsprogs",
    "xz": "xz-utils (xz)", "zstd": "zstd",
}


def run(command: Sequence[str], timeout: float, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, whatever its exit status, and capture its output.

    :param timeout: seconds after which it is killed, with its process group
    :param options: of :class:`subprocess.Popen`, and ``input``, a text
    :raises HostActionFailed: it cannot be run, or was killed
    """
    text = options.pop("input", None)
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL if text is None else subprocess.PIPE, "errors": "replace"}
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   start_new_session=True, **streams | options)
    except OSError as error:
        raise HostActionFailed(not_run(command[0], error)) from error
    try:
        out, err = process.communicate(text, timeout)
    except subprocess.TimeoutExpired as error:
        raise HostActionFailed(f"`{command[0]}` did not end within {timeout:g} s") from error
    finally:
        end(process)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def kill(process: subprocess.Popen[Any]) -> None:
    """Kill a program that leads a process group, with the whole group, unless it has ended."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # started by sudo, it belongs to root
            os.killpg(process.pid, signal.SIGKILL)


def end(process: subprocess.Popen[Any]) -> int | None:
    """Kill a program as :func:`kill` does, wait for it KILL_TIMEOUT, and close its pipes.

    :returns: its exit status; None if it waits uninterruptibly in the kernel (state D): it is abandoned
    """
    kill(process)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILL_TIMEOUT)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    return process.returncode


def check(command: Sequence[str], timeout: float, problem: str, accepted: Container[int] = (0,),
          failure: Failure = HostActionFailed, **options: Any) -> str:
    """Run a program to its end, and return its output.

    :param problem: begins the error message
    :param timeout: seconds after which it is killed
    :raises Exception: ``failure``: it cannot be run, failed (with its output), or was killed
    """
    try:
        done = run(command, timeout, **options)
    except HostActionFailed as error:
        raise failure(f"{problem}: {error}") from error
    if done.returncode not in accepted:
        said = " ".join((done.stderr or done.stdout).split())[:SAID].encode(errors="replace").decode()
        raise failure(f"{problem}: {said}")
    return done.stdout


def start(command: Sequence[str], problem: str, failure: Failure = HostActionFailed,
          **options: Any) -> subprocess.Popen[bytes]:
    """Start a program.

    :param problem: begins the error message
    :raises Exception: ``failure``: it is missing or cannot be run
    """
    try:
        return subprocess.Popen(command, **options)
    except OSError as error:
        raise failure(f"{problem}: {not_run(command[0], error)}") from error


@contextlib.contextmanager
def running(command: Sequence[str], timeout: float, problem: str, failure: Failure = HostActionFailed,
            **options: Any) -> Iterator[None]:
    """Run a program concurrently to the block, whose end waits for it; a block that fails ends it.

    :param timeout: seconds after which it is killed, with all that it started
    :param problem: begins the error message
    :raises Exception: ``failure``: it cannot be run, failed (with its output), or was killed
    """
    import tempfile  # noqa: PLC0415  (every start of a container on Docker waits until this module is loaded)
    with tempfile.TemporaryFile() as errors:
        process = start(command, problem, failure, stderr=errors, start_new_session=True, **options)
        with limited(process, timeout) as wait:
            yield
            if wait() != 0:
                raise failure(f"{problem}: {words(errors) or f'not done within {timeout:g} s'}")


@contextlib.contextmanager
def limited(process: subprocess.Popen[Any], timeout: float) -> Iterator[Callable[[], int | None]]:
    """Kill a program that leads a process group, with the whole group, after some time, or when the block ends.

    :param timeout: seconds from now
    :returns: waits until it has ended, and returns its exit status; None as of :func:`end`
    """
    deadline = time.monotonic() + timeout

    def wait() -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        return end(process)

    clock = threading.Timer(timeout, kill, [process])
    clock.start()
    try:
        yield wait
    finally:
        clock.cancel()
        end(process)


def words(errors: IO[bytes]) -> str:
    """Return the beginning of a program's output in a file, as one line."""
    errors.seek(0)
    return " ".join(errors.read(4 * SAID).decode(errors="replace").split())[:SAID]


def detached(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a program that outlives this process, in a new session, without open streams or directories.

    :param options: of :class:`subprocess.Popen`
    """
    nothing: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    return subprocess.Popen(command, cwd="/", start_new_session=True, **nothing | options)


@contextlib.contextmanager
def holding(command: Sequence[str], what: str, timeout: float, late: str,
            **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program that keeps something frozen until its standard input ends, also because this process was killed.

    It prints :data:`HELD` once it holds it, otherwise the reason of its failure. The end of the block closes its
    standard input; :func:`release` also waits for it.

    :param what: what it freezes, for messages
    :param timeout: seconds until it must hold
    :param late: the reason if it does not by then
    :param options: of :class:`subprocess.Popen`
    :raises HostActionFailed: it does not hold
    """
    # No `with`: its exit would wait for a process in state D.
    process = detached(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)
    stdin, stdout = cast("BinaryIO", process.stdin), cast("BinaryIO", process.stdout)
    with stdout, stdin:
        if not is_readable(stdout, timeout):
            raise HostActionFailed(f"{what} cannot be frozen within {timeout:g} s: {late}")
        answer = stdout.readline()
        if answer != HELD:
            end(process)
            raise HostActionFailed(f"{what} cannot be frozen: {answer.decode(errors='replace').strip() or 'killed'}")
        yield process


def release(process: subprocess.Popen[bytes], timeout: float = RELEASE_TIMEOUT) -> int:
    """Release what a program of :func:`holding` holds, and wait until the program has ended.

    :param timeout: seconds after which it is killed
    :returns: its exit status; -SIGKILL also if it waits uninterruptibly in the kernel
    """
    cast("BinaryIO", process.stdin).close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(timeout)
    status = end(process)
    return -signal.SIGKILL if status is None else status


def confined(seconds: int, written: int | None = None, memory: int = MEMORY) -> Sequence[str]:
    """Return the prefix for a command that confines it for reading untrusted input (setrlimit(2)).

    Its threads share one heap (``mallopt(3)``): otherwise each one reserves another 64 MiB of address space, more so
    with many processors, until no further thread can start.

    :param seconds: processor time
    :param written: bytes that it may write to any file; None for no limit
    :param memory: bytes of address space
    """
    size = () if written is None else (f"--fsize={written}",)
    return ("env", "MALLOC_ARENA_MAX=1", "prlimit", f"--as={memory}", f"--cpu={seconds}", f"--stack={STACK}",
            "--core=0", f"--nofile={FILES}", *size, "--")


def not_run(program: str, error: OSError) -> str:
    """Describe why a program could not be started, and for a missing one its package."""
    if not isinstance(error, FileNotFoundError):
        return f"program {program} cannot be run: {error}"
    return f"this host has no program {program}; {remedy(program)}"


def missing(names: Iterable[str]) -> Sequence[str]:
    """Return a sentence for each program that this host lacks."""
    return [f"there is no program {name}; {remedy(name)}" for name in names
            if shutil.which(name, path=system_path()) is None]


def system_path() -> str:
    """Return the search path with the directories of file system tools, which are not on every user's."""
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def remedy(program: str) -> str:
    package = PACKAGES.get(program)
    return f"install {f'package {package}' if package else 'it'}"
