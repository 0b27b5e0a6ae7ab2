# SPDX-License-Identifier: Apache-2.0
"""The operator's file about shared GPUs, on the emulated host alone."""

import subprocess
from pathlib import Path

import fixtures

from containerhost.inventory.sharing import FILE


class SharingFile(fixtures.Fixture):
    """A file system of its own, in the emulated host's mount namespace, hides what the machine has in the directory."""

    def __init__(self, text: str) -> None:
        self._text = text

    def _setUp(self) -> None:
        directory = Path(FILE).parent
        directory.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "sharing", directory], check=True)
        self.addCleanup(subprocess.run, ["umount", directory], check=True)
        self.write(self._text)

    def write(self, text: str) -> None:
        Path(FILE).write_text(text, encoding="utf-8")
