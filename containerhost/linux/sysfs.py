# SPDX-License-Identifier: Apache-2.0
"""Read /sys, /proc and /dev, of this host or of a captured copy of another's. No other module does.

The content of kernel files is never trusted: a missing, unreadable or malformed file reads as None or as nothing, so
that one broken card does not hide the others. The caller reports problems. Device nodes are only examined by lstat,
never opened.
"""

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

ATTRIBUTE_LIMIT = 4096  # bytes; the kernel limits a sysfs attribute to one page
TABLE_LIMIT = 16 << 20  # bytes; /proc/cpuinfo of a thousand cores is 2 MiB
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_MAJOR_MINOR = re.compile(r"([0-9]{1,4}):([0-9]{1,7})", re.ASCII)
_DECIMAL = re.compile(r"-?[0-9]{1,20}", re.ASCII)


class Host:
    """Read one host's kernel files.

    :param root: ``/``, or a directory that holds a host's captured ``sys``, ``proc`` and ``dev``
    :ivar stacked: replacement for :func:`containerhost.linux.network.stacked.elsewhere` in a process without the
        rights
    """

    stacked: Callable[[], Mapping[int, tuple[str, ...]]] | None = None

    def __init__(self, root: Path | str = "/") -> None:
        self.root = Path(root)
        self.live = os.path.realpath(self.root) == "/"
        self._prefix = "" if self.live else os.path.abspath(self.root)
        # A captured tree is untrusted: a file in it could be a FIFO, or a link to a device node.
        self._flags = _FLAGS if self.live else _FLAGS | os.O_NOFOLLOW

    def data(self, path: str, limit: int = ATTRIBUTE_LIMIT) -> bytes | None:
        """Return the first ``limit`` bytes of a file (an absolute path of the host); None if it is unreadable."""
        fd = self.open(path)
        if fd is None:
            return None
        try:
            # Tables of /proc need several reads, an attribute one.
            return os.read(fd, limit) if limit <= ATTRIBUTE_LIMIT else b"".join(_pieces(fd, limit))
        except OSError:
            return None
        finally:
            os.close(fd)

    def open(self, path: str) -> int | None:
        """Open a file for repeated reading; the caller closes it. None if it cannot be opened."""
        try:
            return os.open(self._prefix + path, self._flags)
        except (OSError, ValueError):
            return None

    def text(self, path: str) -> str | None:
        """Return an attribute's text without surrounding white space; None if it is missing or empty."""
        data = self.data(path)
        return (data.decode("utf-8", "replace").strip(" \t\r\n\0") or None) if data else None

    def number(self, path: str) -> int | None:
        """Return a decimal attribute; None if it is missing or not a number."""
        text = self.text(path)
        return int(text) if text and _DECIMAL.fullmatch(text) else None

    def lines(self, path: str) -> list[str]:
        """Return the lines of a /proc table, split at line feeds only; none if it is missing.

        Tenants choose some of the content."""
        data = self.data(path, TABLE_LIMIT)
        return data.decode("utf-8", "replace").removesuffix("\n").split("\n") if data else []

    def fields(self, path: str) -> dict[str, str]:
        """Return a ``Key: value`` table such as /proc/meminfo, with the first value of each key."""
        found: dict[str, str] = {}
        for line in self.lines(path):
            key, colon, value = line.partition(":")
            if colon:
                found.setdefault(key.strip(), value.strip())
        return found

    def names(self, path: str) -> tuple[str, ...]:
        """Return the sorted entries of a directory; none if it is missing."""
        try:
            return tuple(sorted(os.listdir(self._prefix + path)))
        except (OSError, ValueError):
            return ()

    def exists(self, path: str) -> bool:
        return os.path.lexists(self._prefix + path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(self._prefix + path)

    def target(self, path: str) -> str | None:
        """Return the target of a symbolic link; None if it is not a link."""
        try:
            return os.readlink(self._prefix + path)
        except (OSError, ValueError):
            return None

    def link(self, path: str) -> str | None:
        """Return the last component of a link's target (``driver`` -> ``mlx5_core``); None if it is not a link."""
        target = self.target(path)
        return (target.rpartition("/")[2] or None) if target else None

    def char_number(self, path: str) -> tuple[int, int] | None:
        """Return the numbers of a sysfs ``dev`` file, ``major:minor``; None if missing or out of range."""
        match = _MAJOR_MINOR.fullmatch(self.text(path) or "")
        if not match:
            return None
        major, minor = int(match[1]), int(match[2])
        return (major, minor) if major < 1 << 12 and minor < 1 << 20 else None

    @property
    def boot_id(self) -> str | None:
        """Return the kernel's random id of this boot; None in a captured tree without it."""
        return self.text("/proc/sys/kernel/random/boot_id")

    @property
    def char_majors(self) -> dict[str, int]:
        """Return the majors of drivers by name, from the character half of /proc/devices, as of now."""
        majors: dict[str, int] = {}
        character = False
        for line in self.lines("/proc/devices"):
            number, _, name = line.strip().partition(" ")
            if line.endswith(":"):
                character = line.startswith("Character")
            elif character and number.isascii() and number.isdigit() and len(number) <= 4:
                majors.setdefault(name.strip(), int(number))
        return majors

    def misc_number(self, name: str) -> tuple[int, int] | None:
        """Return the number of a misc driver such as ``rdma_cm``, from its ``dev`` file or /proc/misc."""
        number = self.char_number(f"/sys/class/misc/{name}/dev")
        if number:
            return number
        for line in self.lines("/proc/misc"):
            minor, _, driver = line.strip().partition(" ")
            if driver == name and minor.isascii() and minor.isdigit() and len(minor) <= 7:
                return 10, int(minor)  # 10 is the misc major (Documentation/admin-guide/devices.txt)
        return None

    def node_fault(self, path: str, major: int, minor: int) -> str | None:
        """Describe the fault of the device node at ``path``; None if it has none.

        In a captured tree, where device nodes require root, a regular file represents the node.
        """
        try:
            status = os.lstat(self._prefix + path)
        except (OSError, ValueError):
            return f"device node {path} is missing"
        if stat.S_ISCHR(status.st_mode):
            found = (os.major(status.st_rdev), os.minor(status.st_rdev))
            if found != (major, minor):
                return f"device node {path} is {found[0]}:{found[1]}, but the driver's is {major}:{minor}"
        elif self.live or not stat.S_ISREG(status.st_mode):
            return f"{path} is no device node"
        return None


def _pieces(fd: int, left: int) -> Iterator[bytes]:
    while left > 0 and (piece := os.read(fd, min(left, 1 << 16))):
        left -= len(piece)
        yield piece
