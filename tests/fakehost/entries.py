# SPDX-License-Identifier: Apache-2.0
"""Describe what a tree is made of: files, links and nodes as plain values, and how to put them under a root directory.

Paths are relative to the root (``sys/bus/pci/devices/...``). Because entries are values, the difference between two
states of a host is a set difference: what went is removed, what came is written.
"""

import dataclasses
import os
import pathlib
import stat
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True)
class File:
    """A file with content; ``mode`` as for chmod, but its owner may always write: a test may be no root."""

    path: str
    content: str | bytes
    mode: int = 0o444


@dataclasses.dataclass(frozen=True)
class Link:
    """A symbolic link to another path of the tree; written as a relative link, as the kernel does."""

    path: str
    target: str


@dataclasses.dataclass(frozen=True)
class Directory:
    path: str


@dataclasses.dataclass(frozen=True)
class Node:
    """A character node below dev/; in a static tree, which needs no privileges, an empty file stands for it."""

    path: str
    major: int
    minor: int
    mode: int = 0o666


@dataclasses.dataclass(frozen=True)
class Action:
    """An attribute that makes something happen when it is written, such as sriov_numvfs.

    In a static tree it is a file and nothing happens.

    :ivar address: the PCI address it belongs to; empty for one of a driver or of the bus
    :ivar content: what reading it gives
    """

    path: str
    name: str
    address: str = ""
    content: str = ""
    mode: int = 0o644


Entry = File | Link | Directory | Node | Action


class Writer:
    """Puts entries below a root directory, over what is there, and takes them away again; needs no privileges."""

    def __init__(self, root: str | pathlib.Path) -> None:
        self.root = str(root)

    def write(self, entries: Iterable[Entry]) -> None:
        made: set[str] = set()
        for entry in entries:
            path = self.path(entry)
            directory = path if isinstance(entry, Directory) else os.path.dirname(path)
            if directory not in made:
                os.makedirs(directory, exist_ok=True)
                made.add(directory)
            match entry:
                case File():
                    self._file(path, entry.content, entry.mode)
                case Link():
                    os.symlink(_relative(entry.target, entry.path), path)
                case Node():
                    self.node(path, entry)
                case Action():
                    self.action(path, entry)

    def remove(self, entries: Iterable[Entry]) -> None:
        """Remove entries, and the directories that are empty afterwards."""
        directories = set()
        for entry in entries:
            path = self.path(entry)
            directories.add(os.path.dirname(path))
            if isinstance(entry, Directory):
                directories.add(path)
            else:
                self.unlink(path, entry)
        for directory in sorted(directories, reverse=True):
            self._prune(directory)

    def path(self, entry: Entry) -> str:
        return os.path.join(self.root, entry.path)

    def node(self, path: str, entry: Node) -> None:
        self._file(path, "", entry.mode)

    def action(self, path: str, entry: Action) -> None:
        self._file(path, entry.content, entry.mode)

    def unlink(self, path: str, entry: Entry) -> None:
        os.unlink(path)

    def _prune(self, directory: str) -> None:
        while directory != self.root and os.path.isdir(directory) and not os.listdir(directory):
            os.rmdir(directory)
            directory = os.path.dirname(directory)

    @staticmethod
    def _file(path: str, content: str | bytes, mode: int) -> None:
        data = content.encode() if isinstance(content, str) else content
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode | stat.S_IWUSR)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)


def _relative(target: str, link: str) -> str:
    """The target of a link as seen from the link's directory (what os.path.relpath gives, ten times as fast)."""
    to, start = target.split("/"), link.split("/")[:-1]
    common = 0
    while common < min(len(to), len(start)) and to[common] == start[common]:
        common += 1
    return "/".join([".."] * (len(start) - common) + to[common:])
