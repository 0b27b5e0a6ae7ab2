# SPDX-License-Identifier: Apache-2.0
"""A container that is made of namespaces and of a control group, for tests that freeze it."""

import contextlib
import ctypes
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fixtures

from containerhost.linux import controlgroups
from containerhost.linux.sysfs import Host
from tests.fakehost import cgroups
from tests.waiting import TIMEOUT

ROOT = Path("/sys/fs/cgroup")
HIERARCHIES = {"v1": (ROOT / "freezer", "freezer.state"), "v2": (ROOT, "cgroup.freeze"),
               "hybrid": (ROOT / "unified", "cgroup.freeze")}
EVERY = "every"

# One process at a time has the file. It forks and exits, so that a walk over /proc finds it only by chance.
IDLE = "import time; print(flush=True); time.sleep(600)"
FORKING = """
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
file = os.open(sys.argv[1], os.O_PATH)
print(flush=True)
if os.fork():
    os.close(file)
    while True:
        time.sleep(60)
for _ in range(20):
    if os.fork() == 0:
        os.close(file)
        while True:
            time.sleep(60)
while True:
    if os.fork():
        os._exit(0)
"""

_numbers = itertools.count()


def of(pid: int) -> list[Path]:
    """Return the groups by which a process may be frozen."""
    groups = controlgroups.of(pid, Host())
    mounts = {"freezer": HIERARCHIES["v1"][0], "": next(ROOT.glob("unified"), ROOT)}
    return [mount / groups[controller].lstrip("/") for controller, mount in mounts.items() if controller in groups]


def hierarchies() -> dict[str, tuple[Path, str]]:
    """Return those of this machine in which a group can be frozen."""
    found = {kind: (mount, file) for kind, (mount, file) in HIERARCHIES.items()
             if (mount / "cgroup.procs").exists() and (kind == "v1" or (mount / "cgroup.controllers").exists())}
    if not found:
        raise AssertionError("this machine has no control groups that can be frozen")
    return found


class Container(fixtures.Fixture):
    """:param kind: a key of HIERARCHIES, or EVERY: a group of the same name in all of them, as LXC makes it
    :param script, arguments: a Python program, its first process; it writes an empty line when it is ready
    :param name: of the group; {} is a number of its own
    :param below: where the process is, below the group
    :param inside: a process whose PID namespace it joins; None for one of its own
    :ivar group: directory of the control group
    :ivar freeze: the file that freezes it
    :ivar pid: the first process, as the host numbers it
    """

    def __init__(self, kind: str, script: str, *arguments: str, name: str = "lxc.payload.{}", below: str = "",
                 stdin: int | None = None, inside: int | None = None) -> None:
        own, *others = [mounted for mounted in hierarchies().items() if kind in (mounted[0], EVERY)]
        mount, file = own[1]
        name = name.format(f"test-{os.getpid()}-{next(_numbers)}")
        self.group = mount / name
        self.freeze = self.group / file
        self._below = self.group / below
        self._groups = [self.group, *(mount / name for _, (mount, _) in others)]
        self._others = [group / below for group in self._groups[1:]]
        self._stdin = stdin
        self._enter = f"nsenter --pid=/proc/{inside}/ns/pid" if inside else "unshare --pid --fork --kill-child"
        self._command = [sys.executable, "-c", script, *arguments]

    def _setUp(self) -> None:
        for below in (self._below, *self._others):
            below.mkdir(parents=True)
        self.addCleanup(self._remove)
        others = "".join(f"echo $$ > {other}/cgroup.procs && " for other in self._others)
        enter = f'{others}echo $$ > "$0"/cgroup.procs && exec {self._enter} "$@"'
        self._process = subprocess.Popen(["sh", "-c", enter, str(self._below), *self._command], stdin=self._stdin,
                                         stdout=subprocess.PIPE)
        self.addCleanup(self._kill)
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        with self._process.stdout as output:
            if output.readline() != b"\n":
                raise AssertionError("the container's program does not run")
        self.pid = int(children.read_text())

    def end(self) -> None:
        """End its processes, and remove its group as its engine does."""
        self._process.kill()
        self._process.wait()
        self._remove()

    def _kill(self) -> None:
        self.thaw()
        # Its first process may wait in the kernel for a lock of another one, and would end the others only at its end.
        for pid in self._pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def is_frozen(self) -> bool:
        return self.freeze.read_text().strip() in ("FROZEN", "FREEZING", "1")

    def suspend(self) -> None:
        """Freeze it as its user does."""
        self.freeze.write_text("FROZEN" if self.freeze.name == "freezer.state" else "1")

    def thaw(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.freeze.write_text("THAWED" if self.freeze.name == "freezer.state" else "0")

    def _pids(self) -> list[int]:
        """Return the group's processes; none of a group that was removed."""
        files = [below / "cgroup.procs" for below in (self._below, *self._others)]
        return [int(pid) for file in files if file.exists() for pid in file.read_text().split()]

    def _remove(self) -> None:
        if self._below.exists():
            for group in self._groups:
                cgroups.remove_directory(str(group), time.monotonic() + TIMEOUT)


class SilentFuse(fixtures.Fixture):
    """A file system (FUSE) whose process never answers: who asks it waits in the kernel until the mount ends.

    :ivar directory: where it is mounted
    """

    def _setUp(self) -> None:
        self.directory = self.useFixture(fixtures.TempDir()).path
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        self.addCleanup(os.close, device)
        options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if ctypes.CDLL(None).mount(b"test", self.directory.encode(), b"fuse", 0, options) < 0:
            raise AssertionError("FUSE cannot be mounted")
        self.addCleanup(subprocess.run, ["umount", "--force", "--lazy", self.directory], check=True)
