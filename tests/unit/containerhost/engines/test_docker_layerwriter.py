# SPDX-License-Identifier: Apache-2.0
"""Layers that are written while files change, and one afterwards, together have exactly what there is."""

import contextlib
import errno
import io
import os
import random
import shutil
import stat
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import fixtures
import testtools

from containerhost.engines.docker import layerwriter
from containerhost.engines.docker.layerwriter import NOTHING, OPAQUE, UNBOUNDED, WHITEOUT, Bounds, Target
from tests import levels

SETTLED = 30 * 10**6  # ns: more than a tick of the kernel's clock
NAMES = ("a", "b", "c")
Tree = dict[str, tuple[Any, ...]]


def tree(directory: Path) -> Tree:
    """Return what a directory has: type, mode, time and content, and which names are of one file."""
    found: Tree = {}
    first: dict[int, str] = {}
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        kind, name = stat.S_IFMT(status.st_mode), str(path.relative_to(directory))
        content: object = None
        if kind == stat.S_IFREG:
            content = (path.read_bytes(), first.setdefault(status.st_ino, name))
        elif kind == stat.S_IFLNK:
            content = os.readlink(path)
        elif kind == stat.S_IFSOCK:
            continue
        found[name] = (kind, stat.S_IMODE(status.st_mode), int(status.st_mtime), content)
    return found


def applied(layers: list[bytes]) -> Tree:
    """Return what an engine makes of layers, one above the other."""
    found: Tree = {}
    for layer in layers:
        with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
            new: set[str] = set()
            for member in archive:
                name = member.name.removeprefix("./")
                parent, _, last = name.rpartition("/")
                assert not parent or parent in new, f"{name} has no directory in its layer"
                if last.startswith(WHITEOUT):
                    hide(found, parent, "" if last == OPAQUE else last[len(WHITEOUT):])
                    continue
                new.add(name)
                if not (member.isdir() and stat.S_ISDIR(found.get(name, (stat.S_IFDIR,))[0])):
                    hide(found, parent, last)
                found[name] = described(archive, member, name, found)
    first: dict[str, str] = {}  # a layer may have a file first under another name than the tree
    for name in sorted(found):
        *rest, content = found[name]
        if rest[0] == stat.S_IFREG:
            found[name] = (*rest, (content[0], first.setdefault(content[1], name)))
    return found


def hide(found: Tree, parent: str, name: str) -> None:
    """Remove an entry with all that is in it; without a name the directory's content."""
    path = "/".join(part for part in (parent, name) if part)
    for each in [each for each in found if each.startswith(f"{path}/") or (each == path and name)]:
        del found[each]


def described(archive: tarfile.TarFile, member: tarfile.TarInfo, name: str, found: Tree) -> tuple[Any, ...]:
    if member.islnk():
        return found[member.linkname.removeprefix("./")]
    kind = next(kind for kind, type in layerwriter.TYPES.items() if type == member.type)
    content: object = member.linkname if member.issym() else None
    if member.isreg():
        content = (archive.extractfile(member).read(), name)  # type: ignore[union-attr]
    return kind, member.mode, member.mtime, content


class RoundsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.base = Path(self.useFixture(fixtures.TempDir()).path)
        self.upper = self.base / "upper"
        self.upper.mkdir()
        self.useFixture(fixtures.MockPatchObject(layerwriter, "SETTLED", SETTLED))
        self.entries, self.layers = NOTHING, list[bytes]()

    def write(self, *, runs: bool = False, bounds: Bounds = UNBOUNDED) -> int:
        """Write a layer, and return its number of members."""
        target = io.BytesIO()
        began = time.time_ns() if runs else None
        self.entries = layerwriter.write(self.upper, Target(target, bounds), self.entries, began)
        self.layers.append(target.getvalue())
        with tarfile.open(fileobj=io.BytesIO(self.layers[-1])) as layer:
            return len(layer.getnames())

    def assert_complete(self) -> None:
        self.assertEqual(tree(self.upper), applied(self.layers))

    def change(self, draw: random.Random) -> None:
        """Do one thing that a tenant may do."""
        directories = [self.upper, *(path for path in self.upper.rglob("*") if path.is_dir() and not path.is_symlink())]
        path = draw.choice(directories) / draw.choice(NAMES)
        others = [each for each in self.upper.rglob("*") if each.is_file() and not each.is_symlink()]

        def fill() -> None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_NOFOLLOW
            with open(os.open(path, flags), "wb") as file:
                file.write(draw.randbytes(draw.randrange(3)))

        acts: list[Callable[[], object]] = [
            path.mkdir, fill,
            lambda: path.symlink_to(draw.choice(("absent", "a", ".."))), lambda: os.mkfifo(path),
            # Never through a link, which leads out of the test's directory.
            lambda: path.is_symlink() or path.chmod(draw.choice((0o700, 0o755))),
            lambda: path.hardlink_to(draw.choice(others)),
            lambda: os.mknod(path, stat.S_IFSOCK | 0o600),
            lambda: path.rename(draw.choice(directories) / draw.choice(NAMES)), lambda: remove(path),
            lambda: (remove(path), path.mkdir()), lambda: (remove(path), fill())]
        with contextlib.suppress(OSError, IndexError):
            draw.choice(acts)()

    def test_any_changes(self) -> None:
        for seed in range(1000 if levels.LEVEL == "exhaustive" else 40):
            draw = random.Random(seed)
            for _ in range(draw.randrange(1, 5)):
                for _ in range(draw.randrange(25)):
                    self.change(draw)
                self.write(runs=True)
                if draw.randrange(3):
                    time.sleep(2 * SETTLED / 10**9)
            for _ in range(draw.randrange(25)):
                self.change(draw)
            self.write()
            self.assertEqual(tree(self.upper), applied(self.layers), f"seed {seed}")
            shutil.rmtree(self.upper)
            self.upper.mkdir()
            self.entries, self.layers = NOTHING, []

    def test_only_what_changed_is_written_again(self) -> None:
        (self.upper / "d/e").mkdir(parents=True)
        for name in ("d/old", "d/e/new"):
            (self.upper / name).write_text(name)
        time.sleep(2 * SETTLED / 10**9)
        self.assertEqual(4, self.write(runs=True))
        self.assertEqual(0, self.write(runs=True))
        (self.upper / "d/e/new").write_text("changed")
        self.assertEqual(3, self.write())
        self.assert_complete()

    def test_what_changed_a_moment_before_is_written_again(self) -> None:
        """The kernel's clock ticks slowly: a file may change twice within one time."""
        (self.upper / "a").write_text("one")
        self.assertEqual((1, 1), (self.write(runs=True), self.write()))

    def test_files_that_shrink_grow_or_go_do_not_fail_it(self) -> None:
        for name in "abcd":
            (self.upper / name).write_bytes(bytes(5000))
        real = os.stat
        acts: dict[str, Callable[[], object]] = {
            "a": lambda: (self.upper / "a").write_bytes(b"x"),
            "b": lambda: (self.upper / "b").write_bytes(bytes(1 << 20)),
            "c": (self.upper / "c").unlink,
            "d": lambda: ((self.upper / "d").unlink(), (self.upper / "d").symlink_to("absent"))}

        def changing(name: str, **more: Any) -> Any:
            found = real(name, **more)
            acts[name]()
            return found

        with fixtures.MonkeyPatch("os.stat", changing):
            self.write(runs=True)
        self.write()
        self.assert_complete()

    def test_file_that_shrinks_while_it_is_read_has_zeros_then(self) -> None:
        (self.upper / "a").write_bytes(b"x" * 5000)
        with (self.upper / "a").open("rb", buffering=0) as file:
            padded = layerwriter._Padded(file, 9000)
            self.assertEqual((b"x" * 5000 + bytes(3000), bytes(1000), b""),
                             (padded.read(8000), padded.read(8000), padded.read(8000)))

    def test_stopped_container_whose_files_cannot_be_read_fails(self) -> None:
        (self.upper / "a").write_text("x")
        with fixtures.MockPatch("os.stat", side_effect=FileNotFoundError(errno.ENOENT, "gone")):
            self.assertRaises(FileNotFoundError, self.write)

    def test_socket_hides_the_file_that_it_replaced(self) -> None:
        """An image below may have one, which a layer without the socket would show again."""
        os.mknod(self.upper / "a", stat.S_IFSOCK | 0o600)
        time.sleep(2 * SETTLED / 10**9)
        self.assertEqual((1, 0), (self.write(runs=True), self.write()))
        with tarfile.open(fileobj=io.BytesIO(self.layers[0])) as layer:
            self.assertEqual(["./.wh.a"], layer.getnames())

    def test_stopped_containers_files_take_no_memory(self) -> None:
        for name in ("d/e", "f"):
            (self.upper / name).mkdir(parents=True)
        time.sleep(2 * SETTLED / 10**9)
        self.write(runs=True)
        for name in ("d/e/new", "new"):
            (self.upper / name).touch()
        (self.upper / "f").rmdir()
        self.write()
        self.assertEqual({"d": {"e": {}}}, names(self.entries))
        self.assert_complete()

    def test_names_of_hard_links_take_little_memory(self) -> None:
        (self.upper / "d").mkdir()
        for number in range(10):
            (self.upper / "d" / str(number)).touch()
            (self.upper / "d" / f"{number}-too").hardlink_to(self.upper / "d" / str(number))
        self.useFixture(fixtures.MockPatchObject(layerwriter, "LINKS", 9 * len("./d/0")))
        self.assertEqual(errno.E2BIG, self.assertRaises(OSError, self.write).errno)

    def test_clock_set_forward_settles_nothing(self) -> None:
        """A write in progress has changed the file's time already, by the clock as it was."""
        (self.upper / "a").touch()
        hour = 3600 * 10**9
        self.useFixture(fixtures.MockPatchObject(layerwriter, "SETTLED", hour // 2))
        self.useFixture(fixtures.MockPatchObject(layerwriter, "check"))
        for step in (0, hour, -hour):
            with fixtures.MockPatch("time.time_ns", return_value=time.time_ns() + step):
                began = layerwriter.begin(self.upper, contextlib.nullcontext())
            self.assertLess(began, time.time_ns())
            entries = layerwriter.write(self.upper, Target(io.BytesIO(), UNBOUNDED), began=began)
            self.assertEqual(-1, entries["a"].changed)

    def test_no_more_is_written_than_there_is_room(self) -> None:
        with (self.upper / "sparse").open("wb") as file:
            file.truncate(1 << 40)
        error = self.assertRaises(OSError, self.write, runs=True, bounds=Bounds(1 << 20))
        self.assertEqual(errno.ENOSPC, error.errno)

    def test_long_names_count(self) -> None:
        for number in range(200):
            (self.upper / f"{number}{'x' * 200}").touch()
        self.assertRaises(OSError, self.write, bounds=Bounds(200 * 1024))
        self.write(bounds=Bounds(200 * 2048))

    def test_walk_ends_where_nothing_is_written(self) -> None:
        (self.upper / "d/e").mkdir(parents=True)
        (self.upper / "d/e/.wh.ignored").touch()
        time.sleep(2 * SETTLED / 10**9)
        self.write(runs=True)
        ends = Bounds(1 << 20, mock.Mock(side_effect=[None, None, TimeoutError]))
        self.assertRaises(TimeoutError, self.write, runs=True, bounds=ends)

    def test_directories_within_one_another_end(self) -> None:
        path = self.upper
        for _ in range(layerwriter.DEPTH + 1):
            path = path / "d"
            path.mkdir()
        self.assertRaises(OSError, self.write, runs=True)


def names(entries: layerwriter.Entries) -> dict[str, Any]:
    return {name: names(entry.entries) for name, entry in entries.items()}


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
