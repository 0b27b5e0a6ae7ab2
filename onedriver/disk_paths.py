# SPDX-License-Identifier: Apache-2.0
"""Parse the paths of disks, as oned passes them to a transfer driver: ``HOST:DIRECTORY/DATASTORE/VM/disk.N``. Pure."""

import posixpath
import re
from pathlib import Path
from typing import NamedTuple

from onedriver.errors import BadInput

HOST = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9._:%\]-]{0,253}")
PATH = re.compile(r"(?P<directory>/(?:.+/)?[0-9]{1,9}/(?P<vm>[0-9]{1,9}))(?:/(?P<disk>disk\.[0-9]{1,4}))?")
NUMBER = re.compile(r"[0-9]{1,9}")


class DiskPath(NamedTuple):
    """Locate a disk of a VM, or the VM's whole directory, in a system datastore of a host.

    :ivar directory: the VM's, in a system datastore
    :ivar disk: ``disk.N``; None is the whole directory
    """

    host: str
    directory: Path
    disk: str | None
    vm: int

    @property
    def path(self) -> Path:
        return self.directory / self.disk if self.disk else self.directory

    @property
    def number(self) -> int:
        """Return the disk's number."""
        if self.disk is None:
            raise BadInput(f"{self.host}:{self.directory} is not a disk")
        return int(self.disk.partition(".")[2])


def parse(text: str) -> DiskPath:
    """Parse the path of a VM's disk; raise BadInput on anything else."""
    host, _, path = text.partition(":/")
    if not HOST.fullmatch(host):
        raise BadInput(f"{text[:120]!r} does not begin with a host's name and a colon")
    directory, disk, vm = inside(f"/{path}")
    return DiskPath(host, directory, disk, vm)


def inside(path: str) -> tuple[Path, str | None, int]:
    """Return the directory and disk of a path, and the VM's number."""
    found = PATH.fullmatch(posixpath.normpath(path.replace("//", "/")))
    if found is None or "\n" in path:
        raise BadInput(f"{path[:120]!r} is not a disk or directory of a VM in a system datastore: "
                       "…/DATASTORE/VM/disk.N")
    return Path(found["directory"]), found["disk"], int(found["vm"])


def source(text: str) -> Path:
    """Return a datastore's SOURCE, perhaps with the front-end's name."""
    host, colon, path = text.partition(":/")
    found = f"/{path}" if colon and "/" not in host else text
    if not found.startswith("/") or "\n" in found:
        raise BadInput(f"{text[:120]!r} is not an image of a datastore")
    return Path(posixpath.normpath(found.replace("//", "/")))


def number(text: str, what: str) -> int:
    if not NUMBER.fullmatch(text):
        raise BadInput(f"{what} is {text[:40]!r}, but must be a number")
    return int(text)
