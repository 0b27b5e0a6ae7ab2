# SPDX-License-Identifier: Apache-2.0
"""This checkout as a tar archive: the tests' guest reads it from a disk."""

import configparser
import io
import subprocess
import tarfile
from pathlib import Path

from tools.vm.trees import REPOSITORY

METADATA = "Metadata-Version: 2.1\nName: vmtests\nVersion: 0\n"
#: GPUs of the machine: no vendor of the project's own makes them, so the tests bring a plug-in, as others would.
PLUGIN = "virtio = tests.vm.virtio:Virtio"


def write(target: Path, tests: str) -> None:
    """:param tests: a regular expression of those that are to run"""
    listed = subprocess.run(["git", "-c", f"safe.directory={REPOSITORY}", "-C", str(REPOSITORY), "ls-files", "-z", "-c",
                             "-o", "--exclude-standard"], check=True, capture_output=True, text=True).stdout
    with tarfile.open(target, "w") as archive:
        for name in filter(None, listed.split("\0")):
            if (REPOSITORY / name).exists():
                archive.add(REPOSITORY / name, name, recursive=False)
        add(archive, "vmtests-0.dist-info/METADATA", METADATA)
        add(archive, "vmtests-0.dist-info/entry_points.txt", entry_points())
        add(archive, "vm-filter", tests)


def entry_points() -> str:
    """Return those of the project, which is not installed in the guest, and of the tests' plug-in."""
    config = configparser.ConfigParser()
    config.read(REPOSITORY / "setup.cfg", encoding="utf-8")
    groups = dict(config["entry_points"])
    groups["containerhost.vendors"] += f"\n{PLUGIN}"
    return "".join(f"[{group}]{points}\n" for group, points in groups.items())


def add(archive: tarfile.TarFile, name: str, text: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(text.encode())
    archive.addfile(entry, io.BytesIO(text.encode()))
