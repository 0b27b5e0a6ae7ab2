# SPDX-License-Identifier: Apache-2.0
"""Let a host's disk be full, and lose what was not synced when the power is cut.

While a disk is watched, each change that a process makes below its directory is a step, also those that ``pathlib`` and
``shutil`` make. After a power cut a file has what it had at its last fsync, what it has now, or a part of that; a
directory the names of its last fsync, and of all changes of names since then those up to any one of them: journals keep
their order, and btrfs brings a directory that was synced before others. A rename is there as a whole or not at all.
"""

import builtins
import contextlib
import dataclasses
import errno
import functools
import io
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

FULL, POWER_CUT = "disk full", "power cut"
FREES = ("unlink", "rmdir")
REAL_OPEN = io.open


@dataclasses.dataclass(eq=False)
class Node:
    """A file, a link, or a directory.

    :ivar content: None for a directory
    :ivar synced: its content at the last fsync
    :ivar entries, synced_entries: names in a directory now, and at its last fsync
    """

    content: bytes | None
    is_link: bool = False
    synced: bytes = b""
    entries: dict[str, "Node"] = dataclasses.field(default_factory=dict)
    synced_entries: dict[str, "Node"] = dataclasses.field(default_factory=dict)


Change = tuple[tuple[Node, str, Node | None], ...]  # directory, name, and what it stands for from then on


@dataclasses.dataclass(eq=False)
class Image:
    """A state that a power cut may leave.

    :ivar content: by path below the disk's directory, parents first; None for a directory
    :ivar nodes: by path
    """

    content: dict[str, bytes | None] = dataclasses.field(default_factory=dict)
    nodes: dict[str, Node] = dataclasses.field(default_factory=dict)


class Disk:
    """:ivar full: whether there is no room left"""

    def __init__(self, root: Path, step: Callable[[str], str | None]) -> None:
        self._root = str(root)
        self._step = step
        self._tree = Node(None)
        self._pending: list[Change] = []
        self.full = False

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Make each change a step while the block runs. All that is there before is synced."""
        self._tree, self._pending, self.full = _read(Path(self._root)), [], False
        with contextlib.ExitStack() as stack:
            for name in ("open", "mkdir", "rmdir", "unlink", "link", "symlink", "rename", "fsync"):
                wrapped = functools.partial(getattr(self, f"_{name}"), getattr(os, name))
                for alias in (name, *{"unlink": ("remove",), "rename": ("replace",)}.get(name, ())):
                    stack.enter_context(mock.patch.object(os, alias, wrapped))
            for module in (builtins, io):
                stack.enter_context(mock.patch.object(module, "open", self._open_file))
            yield

    # What a process does

    def _change(self, what: str) -> None:
        """Pass the step of a change.

        :raises OSError: there is no room for it
        """
        self.full |= self._step("disk") == FULL
        if self.full and what not in FREES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _open(self, real: Any, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        place = self._place(path, dir_fd) if flags & (os.O_CREAT | os.O_TRUNC) else None
        if place is None:
            return int(real(path, flags, mode, dir_fd=dir_fd))
        directory, name = place
        if name not in directory.entries or flags & os.O_TRUNC:
            self._change("open")
        fd = real(path, flags, mode, dir_fd=dir_fd)
        self._made(directory, name, b"")
        return int(fd)

    def _open_file(self, file: Any, mode: str = "r", *args: Any, **more: Any) -> Any:
        place = self._place(file, None) if set(mode) & set("wax+") else None
        if place is None:
            return REAL_OPEN(file, mode, *args, **more)
        self._change("open")
        opened = REAL_OPEN(file, mode, *args, **more)
        self._made(*place, b"")
        return opened

    def _mkdir(self, real: Any, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        self._make("mkdir", path, dir_fd, None, lambda: real(path, mode, dir_fd=dir_fd))

    def _symlink(self, real: Any, target: Any, path: Any, is_directory: bool = False, *, dir_fd: int | None = None
                 ) -> None:
        self._make("symlink", path, dir_fd, os.fsencode(target), lambda: real(target, path, dir_fd=dir_fd), True)

    def _make(self, what: str, path: Any, dir_fd: int | None, content: bytes | None, make: Callable[[], None],
              is_link: bool = False) -> None:
        place = self._place(path, dir_fd)
        if place is not None:
            self._change(what)
        make()
        if place is not None:
            self._made(*place, content, is_link)

    def _made(self, directory: Node, name: str, content: bytes | None, is_link: bool = False) -> None:
        if name not in directory.entries:
            self._note((directory, name, Node(content, is_link)))

    def _unlink(self, real: Any, path: Any, *, dir_fd: int | None = None) -> None:
        self._remove("unlink", real, path, dir_fd)

    def _rmdir(self, real: Any, path: Any, *, dir_fd: int | None = None) -> None:
        self._remove("rmdir", real, path, dir_fd)

    def _remove(self, what: str, real: Any, path: Any, dir_fd: int | None) -> None:
        place = self._place(path, dir_fd)
        if place is None or place[1] not in place[0].entries:
            real(path, dir_fd=dir_fd)
            return
        self._change(what)
        self._refresh()
        real(path, dir_fd=dir_fd)
        self._note((*place, None))

    def _rename(self, real: Any, old: Any, new: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
                ) -> None:
        before, after = self._place(old, src_dir_fd), self._place(new, dst_dir_fd)
        if before is None or after is None or before[1] not in before[0].entries:
            real(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            return
        self._change("rename")
        self._refresh()
        real(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        node = before[0].entries[before[1]]
        self._note((*before, None), (*after, node))

    def _link(self, real: Any, source: Any, target: Any, *, src_dir_fd: int | None = None,
              dst_dir_fd: int | None = None, follow_symlinks: bool = True) -> None:
        before, after = self._place(source, src_dir_fd), self._place(target, dst_dir_fd)
        linked = functools.partial(real, source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd,
                                   follow_symlinks=follow_symlinks)
        if before is None or after is None or after[1] in after[0].entries:
            linked()
            return
        self._change("link")
        linked()
        self._note((*after, before[0].entries[before[1]]))

    def _fsync(self, real: Any, fd: int) -> None:
        """Note what is on the disk from now on; nothing needs to wait for this machine's disk."""
        place = self._place(fd, None)
        if place is None:
            return
        self._change("fsync")
        self._refresh()
        node = place[0].entries.get(place[1], self._tree) if place[1] else self._tree
        if node.content is not None:
            node.synced = node.content
            return
        done = [change for change in self._pending if any(directory is node for directory, _, _ in change)]
        for directory, name, entry in (each for change in done for each in change):
            _set(directory.synced_entries, name, entry)
        self._pending = [change for change in self._pending if change not in done]

    # What is known of the disk

    def _place(self, path: Any, dir_fd: int | None) -> tuple[Node, str] | None:
        """Return the directory and the name of a path; None where it is elsewhere. The disk's directory has no name."""
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        elif dir_fd is not None:
            path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), os.fsdecode(path))
        path = os.fsdecode(path)
        parent, name = os.path.split(os.path.abspath(path))
        whole = os.path.join(os.path.realpath(parent), name)
        if whole == self._root:
            return self._tree, ""
        if not whole.startswith(f"{self._root}/"):
            return None
        node: Node | None = self._tree
        for step in whole[len(self._root) + 1:].split("/")[:-1]:
            node = node and node.entries.get(step)
        return (node, name) if node is not None and node.content is None else None

    def _note(self, *change: tuple[Node, str, Node | None]) -> None:
        for directory, name, entry in change:
            _set(directory.entries, name, entry)
        self._pending.append(change)

    def _refresh(self) -> None:
        """Read what files have now."""
        for path, node in _walk(self._tree):
            if node.content is not None and not node.is_link:
                with contextlib.suppress(FileNotFoundError), REAL_OPEN(os.path.join(self._root, path), "rb") as file:
                    node.content = file.read()

    # The power cut

    def images(self) -> list[Image]:
        """Return the different states that a power cut may leave now; the first has all that was not synced."""
        self._refresh()
        found: dict[Any, Image] = {}
        for count in range(len(self._pending), -1, -1):
            changes = self._pending[:count]
            for contents in (_kept, _synced, _torn):
                image = self._image(changes, contents)
                found.setdefault(tuple(sorted(image.content.items())), image)
        return list(found.values())

    def _image(self, changes: Sequence[Change], contents: Callable[[Node], bytes]) -> Image:
        names: dict[int, dict[str, Node]] = {}

        def entries(directory: Node) -> dict[str, Node]:
            return names.setdefault(id(directory), dict(directory.synced_entries))

        for directory, name, entry in (each for change in changes for each in change):
            _set(entries(directory), name, entry)
        image = Image()
        for path, node in _walk(self._tree, entries):
            image.content[path] = None if node.content is None else contents(node)
            image.nodes[path] = node
        return image

    def cut_power(self, choice: int) -> int:
        """Let the disk have one of the states that a power cut may leave now.

        :param choice: which one; the last if there are fewer: a repetition may have one less, because two are alike
        :returns: how many there are
        """
        images = self.images()
        self.restore(images[min(choice, len(images) - 1)])
        return len(images)

    def restore(self, image: Image) -> None:
        """Let the disk have this state. A file that is what it was keeps its number and its times."""
        root, now = Path(self._root), dict(_walk(self._tree))
        same = {path for path, node in image.nodes.items() if now.get(path) is node}
        with tempfile.TemporaryDirectory(dir=root.parent) as directory:
            aside: dict[int, str] = {}
            for number, (path, node) in enumerate(now.items()):
                if node.content is not None and path not in same:
                    aside[id(node)] = f"{directory}/{number}"
                    os.link(root / path, aside[id(node)], follow_symlinks=False)
            for path in sorted(now.keys() - same, reverse=True):
                (root / path).rmdir() if now[path].content is None else (root / path).unlink()
            for path, content in image.content.items():
                node, place = image.nodes[path], root / path
                if content is None:
                    place.mkdir(exist_ok=True)
                elif node.is_link:
                    if path not in same:
                        os.symlink(content, place)
                else:
                    if path not in same and id(node) in aside:
                        os.link(aside[id(node)], place)
                    if not place.exists() or place.read_bytes() != content:
                        place.write_bytes(content)


def _kept(node: Node) -> bytes:
    return node.content or b""


def _synced(node: Node) -> bytes:
    return _kept(node) if node.is_link else node.synced


def _torn(node: Node) -> bytes:
    return _kept(node) if node.is_link or node.content == node.synced else _kept(node)[:len(_kept(node)) // 2]


def _set(entries: dict[str, Node], name: str, entry: Node | None) -> None:
    if entry is None:
        entries.pop(name, None)
    else:
        entries[name] = entry


def _walk(directory: Node, entries: Callable[[Node], dict[str, Node]] = lambda node: node.entries, above: str = ""
          ) -> Iterator[tuple[str, Node]]:
    for name, node in sorted(entries(directory).items()):
        yield above + name, node
        if node.content is None:
            yield from _walk(node, entries, f"{above}{name}/")


def _read(path: Path) -> Node:
    """Return what is there, all of it synced."""
    if path.is_symlink():
        return Node(os.fsencode(os.readlink(path)), True)
    if not path.is_dir():
        content = path.read_bytes()
        return Node(content, synced=content)
    entries = {each.name: _read(each) for each in path.iterdir()}
    return Node(None, entries=entries, synced_entries=dict(entries))
