# SPDX-License-Identifier: Apache-2.0
"""Emulated hosts that have a name: found, joined and stopped by it.

A file ``/run/fakehost/NAME`` holds two process ids and is locked as long as the host lives; a file that nobody locks
is left over from a host that was killed, and counts for nothing.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import re
import signal
import time
from collections.abc import Sequence

from tests.fakehost import cgroups, linux, run

DIRECTORY = pathlib.Path("/run/fakehost")
_STOP_TIMEOUT = 30  # seconds


class RegistryError(RuntimeError):
    """No such host, or the name is taken."""


class Registration:
    """A taken name."""

    def __init__(self, name: str, descriptor: int) -> None:
        self._path = DIRECTORY / name
        self._descriptor = descriptor

    def ready(self, init: int) -> None:
        """Make the host known to others.

        :param init: the process id, out here, of its PID 1
        """
        os.truncate(self._descriptor, 0)
        os.write(self._descriptor, json.dumps({"outer": os.getpid(), "init": init}).encode())

    def release(self) -> None:
        self._path.unlink()
        os.close(self._descriptor)
        with contextlib.suppress(OSError):  # another host is registered there
            DIRECTORY.rmdir()


def register(name: str) -> Registration:
    """
    :raises RegistryError: a host of that name runs
    """
    _check_name(name)
    DIRECTORY.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(DIRECTORY / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise RegistryError(
            f"an emulated host named {name} runs already; stop it with: fakehost --stop {name}"
        ) from None
    return Registration(name, descriptor)


def join(name: str, command: Sequence[str]) -> int:
    """Run a command on a running host; its exit status.

    :raises RegistryError: no host of that name runs
    """
    _, init = _find(name)
    directory = os.getcwd()
    for group in cgroups.of(init):
        group.join()
    kinds = ("pid", "net", "cgroup", "mnt")
    namespaces = [os.open(f"/proc/{init}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in kinds]
    for namespace in namespaces:
        linux.setns(namespace, 0)
        os.close(namespace)
    os.chdir(directory)
    run.hold_signals()
    child = run.start(command)  # a PID namespace is entered by children only
    return run.attend(child)


def init(name: str) -> int:
    """The process id of a running host's PID 1.

    :raises RegistryError: no host of that name runs
    """
    return _find(name)[1]


def stop(name: str) -> None:
    """End a running host and everything on it.

    :raises RegistryError: no host of that name runs, or it does not end
    """
    outer, init = _find(name)
    groups = cgroups.of(init)
    os.kill(outer, signal.SIGTERM)
    for pid, limit in ((init, _STOP_TIMEOUT), (outer, _STOP_TIMEOUT)):
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            if not _runs(name):
                return
            cgroups.thaw(groups)
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    raise RegistryError(f"the emulated host {name} (process {outer}) does not end")


def _find(name: str) -> tuple[int, int]:
    _check_name(name)
    if not _runs(name):
        names = ", ".join(sorted(path.name for path in DIRECTORY.glob("*") if _runs(path.name))) or "none"
        raise RegistryError(f"no emulated host named {name} runs; running: {names}")
    content = (DIRECTORY / name).read_text()
    if not content:
        raise RegistryError(f"the emulated host {name} is still starting")
    pids = json.loads(content)
    return pids["outer"], pids["init"]


def _runs(name: str) -> bool:
    try:
        with open(DIRECTORY / name, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", name):
        raise RegistryError(f"{name!r} is not a name: letters, digits, '.', '_' and '-', at most 63")
