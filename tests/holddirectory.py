# SPDX-License-Identifier: Apache-2.0
"""The hostile program that holds a directory's lock in the kernel: who looks up a name in it, or makes one, waits."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import fixtures

from containerhost.linux.process.processes import name, pids
from tests.waiting import await_that

SOURCE = Path(__file__).with_suffix(".c")
NAME = SOURCE.stem
GETDENTS64 = {"x86_64": "217 ", "aarch64": "61 "}[os.uname().machine]  # as /proc/PID/syscall begins in it


class OpenFuse(fixtures.Fixture):
    """/dev/fuse for everybody, as udev makes it; LXD shows the host's node in every container."""

    def _setUp(self) -> None:
        self.addCleanup(os.chmod, "/dev/fuse", os.stat("/dev/fuse").st_mode)
        os.chmod("/dev/fuse", 0o666)


def compiled(program: str | Path) -> None:
    """:param program: the file to make, which needs no library"""
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-static", str(SOURCE), "-o", str(program)],
                   check=True)


def end() -> None:
    """Kill the program, wherever it runs: with its server goes what is held."""
    for pid in pids():
        if name(pid) == NAME:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def await_held() -> None:
    await_that(lambda: any(Path(f"/proc/{pid}/syscall").read_text().startswith(GETDENTS64) for pid in pids()
                           if name(pid) == NAME), "the directory is held")
