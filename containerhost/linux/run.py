# SPDX-License-Identifier: Apache-2.0
"""Run programs of the host: with a time limit, unless they are to outlive their caller, and without a shell."""

import contextlib
import os
import select
import shutil
import subprocess
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import IO, Any, BinaryIO, cast

from containerhost.errors import HostActionFailed

Failure = Callable[[str], Exception]  # what is raised, made of its message

SAID = 300  # characters of a program's own words in an error
MEMORY = 1 << 30  # bytes of address space
CHECK_MEMORY = 4 << 30  # bytes; what checks or enlarges a file system holds maps of it
STACK = 8 << 20  # bytes of each thread's; qemu-img starts up to 64
FILES = 256  # open at once; a qcow2 disk may be made of 64
HELD = b"frozen\n"

# Packages of Debian and Ubuntu, and of Fedora and RHEL where they differ.
PACKAGES = {
    "blkid": "util-linux", "bzip2": "bzip2", "e2fsck": "e2fsprogs", "gzip": "gzip",
    "ip": "iproute2 (iproute)", "mke2fs": "e2fsprogs", "mkfs.ext4": "e2fsprogs",
    "mount": "util-linux (util-linux-core)", "ovs-vsctl": "openvswitch-switch (openvswitch)",
    "partx": "util-linux (util-linux-core)",
    "prlimit": "util-linux (util-linux-core)",
    "qemu-img": "qemu-utils (qemu-img)", "rbd": "ceph-common", "rdma": "iproute2 (iproute)", "resize2fs": "e2fsprogs",
    "runc": "runc, or Docker's containerd.io", "sfdisk": "fdisk (util-linux)",
    "sqfs2tar": "squashfs-tools-ng", "ssh": "openssh-client (openssh-clients)", "sudo": "sudo", "tar": "tar",
    "tc": "iproute2 (iproute-tc)",
    "unshare": "util-linux (util-linux-core)", "unsquashfs": "squashfs-tools", "xfs_growfs": "xfsprogs",
    "xz": "xz-utils (xz)", "zstd": "zstd",
}


def run(command: Sequence[str], timeout: float, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, whatever its exit status, and capture what it prints.

    :param timeout: seconds after which it is killed
    :param options: of :func:`subprocess.run`
    :raises HostActionFailed: it cannot be run, or was killed
    """
    source = {} if "input" in options else {"stdin": subprocess.DEVNULL}
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout, check=False,
                              **source | options)
    except subprocess.TimeoutExpired as error:
        raise HostActionFailed(f"`{command[0]}` did not end within {timeout:g} s") from error
    except OSError as error:
        raise HostActionFailed(not_run(command[0], error)) from error


def check(command: Sequence[str], timeout: float, problem: str, accepted: Container[int] = (0,),
          failure: Failure = HostActionFailed, **options: Any) -> str:
    """Run a program to its end, and return what it prints.

    :param timeout: seconds after which it is killed
    :param problem: what it means that it failed, which begins the error
    :param accepted: exit statuses that are no failure
    :param options: of :func:`subprocess.run`
    :raises Exception: ``failure``: it cannot be run, failed, with its words, or was killed
    """
    try:
        done = run(command, timeout, **options)
    except HostActionFailed as error:
        raise failure(f"{problem}: {error}") from error
    if done.returncode not in accepted:
        raise failure(f"{problem}: {' '.join((done.stderr or done.stdout).split())[:SAID]}")
    return done.stdout


def start(command: Sequence[str], problem: str, failure: Failure = HostActionFailed,
          **options: Any) -> subprocess.Popen[bytes]:
    """Start a program.

    :param problem: what it means that it cannot be run, which begins the error
    :param options: of :class:`subprocess.Popen`
    :raises Exception: ``failure``: it is missing or cannot be run
    """
    try:
        return subprocess.Popen(command, **options)
    except OSError as error:
        raise failure(f"{problem}: {not_run(command[0], error)}") from error


@contextlib.contextmanager
def running(command: Sequence[str], timeout: float, problem: str, failure: Failure = HostActionFailed,
            **options: Any) -> Iterator[None]:
    """Run a program beside the block, whose end waits for it; a block that fails ends it.

    :param timeout: seconds after which it is killed
    :param problem: what it means that it failed, which begins the error
    :param options: of :class:`subprocess.Popen`
    :raises Exception: ``failure``: it cannot be run, failed, with its words, or was killed
    """
    import tempfile  # noqa: PLC0415  (every start of a container on Docker waits until this module is loaded)
    with tempfile.TemporaryFile() as errors, start(command, problem, failure, stderr=errors, **options) as process:
        clock = threading.Timer(timeout, process.kill)
        clock.start()
        try:
            yield
            if process.wait() != 0:
                raise failure(f"{problem}: {words(errors) or f'not done within {timeout:g} s'}")
        finally:
            clock.cancel()
            process.kill()


def words(errors: IO[bytes]) -> str:
    """Return the beginning of what a program has written to a file, on one line."""
    errors.seek(0)
    return " ".join(errors.read(4 * SAID).decode(errors="replace").split())[:SAID]


def detached(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a program that outlives this process: in a session of its own, which keeps no directory and no stream open.

    :param options: of :class:`subprocess.Popen`
    """
    nothing: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    return subprocess.Popen(command, cwd="/", start_new_session=True, **nothing | options)


@contextlib.contextmanager
def holding(command: Sequence[str], what: str, timeout: float, late: str,
            **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program that keeps something frozen until its standard input ends, so also when this process is killed.

    It prints :data:`HELD` once it holds it, and otherwise the reason why it does not. The end of the block closes its
    standard input; :func:`release` also waits for it.

    :param what: what it freezes, for people
    :param timeout: seconds until it must hold
    :param late: the reason if it does not by then
    :param options: of :class:`subprocess.Popen`
    :raises HostActionFailed: it does not hold
    """
    # No `with`: one that waits in the kernel is not waited for.
    process = detached(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)
    stdin, stdout = cast("BinaryIO", process.stdin), cast("BinaryIO", process.stdout)
    with stdout, stdin:
        if not select.select([stdout], [], [], timeout)[0]:
            raise HostActionFailed(f"{what} cannot be frozen within {timeout:g} s: {late}")
        answer = stdout.readline()
        if answer != HELD:
            process.wait()
            raise HostActionFailed(f"{what} cannot be frozen: {answer.decode(errors='replace').strip() or 'killed'}")
        yield process


def release(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
    """Let a program of :func:`holding` go, and wait until it has ended.

    :param timeout: seconds after which it is killed; None waits as long as it takes
    :returns: its exit status
    """
    cast("BinaryIO", process.stdin).close()
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def confined(seconds: int, written: int | None = None, memory: int = MEMORY) -> Sequence[str]:
    """Return the words before a command that reads what a tenant made (setrlimit(2)).

    Its threads share one heap (``mallopt(3)``): else each one reserves 64 MiB of address space more, the sooner the
    more processors the node has, and none is left to start the next.

    :param seconds: processor time
    :param written: bytes that it may write to any file; None for as many as it likes
    :param memory: bytes of address space
    """
    size = () if written is None else (f"--fsize={written}",)
    return ("env", "MALLOC_ARENA_MAX=1", "prlimit", f"--as={memory}", f"--cpu={seconds}", f"--stack={STACK}",
            "--core=0", f"--nofile={FILES}", *size, "--")


def not_run(program: str, error: OSError) -> str:
    """Say in words why a program could not be begun, and for one that is missing which package has it."""
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
