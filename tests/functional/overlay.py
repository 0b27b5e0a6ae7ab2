# SPDX-License-Identifier: Apache-2.0
"""Show this machine with directories whose changes are gone with a test (``tools/overlay``).

Packages and Ansible write to them."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import fixtures

OVERLAY = Path(__file__).parents[2] / "tools/overlay"
# All that the installation of a package changes.
PACKAGES = ("/etc", "/usr", "/opt", "/var/cache", "/var/lib/dpkg")
TIMEOUT = 300  # s


class OverlaidMachine(fixtures.Fixture):
    """:param directories: those that may be changed"""

    def __init__(self, *directories: str) -> None:
        self._directories = directories

    def _setUp(self) -> None:
        self._holder = subprocess.Popen((OVERLAY, *self._directories, "--", "sh", "-c", "echo made; exec cat"),
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(self._holder.communicate)
        if self._holder.stdout.readline() != b"made\n":
            raise RuntimeError(f"{OVERLAY} failed with status {self._holder.wait()}")

    def run(self, *command: str | Path, environment: Mapping[str, str] | None = None) -> str:
        """Run a command there; what it prints.

        :raises AssertionError: it failed
        """
        done = subprocess.run(("nsenter", "--mount", f"--target={self._holder.pid}", "--wdns=/", "--", *command),
                              env=os.environ if environment is None else environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT, check=False)
        if done.returncode:
            raise AssertionError(f"{command} ended with status {done.returncode}: {done.stdout}")
        return done.stdout
