# SPDX-License-Identifier: Apache-2.0
"""Ids of users for a daemon that maps them (userns-remap), on the emulated host alone."""

import subprocess
from pathlib import Path

import fixtures

from tests.functional_docker.dockerd import Daemon, shared

USER = "daemon"  # of every system, with a group of that name
FIRST, COUNT = 400_000, 65_536


class UserIds(fixtures.Fixture):
    """In the emulated host's mount namespace, what stands in place of the machine's own files."""

    def _setUp(self) -> None:
        own = Path(self.useFixture(fixtures.TempDir()).path) / "ids"
        own.write_text(f"{USER}:{FIRST}:{COUNT}\n")
        for file in ("/etc/subuid", "/etc/subgid"):
            subprocess.run(["mount", "--bind", own, file], check=True)
            self.addCleanup(subprocess.run, ["umount", file], check=True)


def daemon() -> Daemon:
    """It reads whose ids are whose at its start alone."""
    with UserIds():
        return shared(f"--userns-remap={USER}")
