# SPDX-License-Identifier: Apache-2.0
import errno
import os
import stat
import threading
from pathlib import Path
from unittest import mock

import fixtures
import testtools
from eventlet.green import os as green

from containerhost.linux.files import UNFINISHED, Directory, atomic_write, replacing


class FilesTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.root = Path(self.useFixture(fixtures.TempDir()).path)
        self.outside = Path(self.useFixture(fixtures.TempDir()).path)
        self.secret = self.outside / "secret"
        self.secret.write_text("secret")
        self.directory = Directory(self.root)
        self.addCleanup(self.directory.close)

    def refused(self, expected: int, call, *args, **kwargs) -> str:
        error = self.assertRaises(OSError, call, *args, **kwargs)
        self.assertEqual(expected, error.errno, error)
        return str(error)

    def mode(self, name: str) -> int:
        return stat.S_IMODE((self.root / name).stat().st_mode)

    def test_write_replaces_the_content_and_sets_the_exact_mode(self) -> None:
        before = os.umask(0o077)
        self.addCleanup(os.umask, before)
        atomic_write(self.root / "file", b"old", 0o600)
        atomic_write(self.root / "file", b"new", 0o644)
        self.assertEqual(b"new", (self.root / "file").read_bytes())
        self.assertEqual(0o644, self.mode("file"))

    def test_write_is_never_readable_by_others_before_its_mode_is_set(self) -> None:
        before = os.umask(0)
        self.addCleanup(os.umask, before)
        seen = []
        fchown = os.fchown

        def spy(fd, uid, gid):
            seen.append(stat.S_IMODE(os.fstat(fd).st_mode))
            fchown(fd, uid, gid)

        with mock.patch.object(os, "fchown", spy):
            self.directory.write("file", b"secret", 0o644, (os.getuid(), os.getgid()))
        self.assertEqual([0o600], seen)

    def test_write_replaces_a_link_and_leaves_its_target(self) -> None:
        (self.root / "file").symlink_to(self.secret)
        self.directory.write("file", b"new")
        self.assertEqual("secret", self.secret.read_text())
        self.assertFalse((self.root / "file").is_symlink())

    def test_failed_write_leaves_the_old_content_and_no_temporary_file(self) -> None:
        self.directory.write("file", b"old")
        with mock.patch.object(os, "fsync", side_effect=OSError(errno.EIO, "disk")):
            self.refused(errno.EIO, self.directory.write, "file", b"new")
        self.assertEqual(b"old", self.directory.read("file"))
        self.assertEqual(["file"], os.listdir(self.root))

    def test_file_that_a_program_writes_replaces_the_old_one_whole_or_not_at_all(self) -> None:
        for unfinished in (None, "file.new"):
            (self.root / "file").write_text("old")
            (self.root / (unfinished or f".file.{os.getpid()}")).write_text("of a killed process")
            error = self.assertRaises(KeyError, self.half_written, unfinished)
            self.assertEqual(("'full'", "old"), (str(error), (self.root / "file").read_text()))
            with replacing(self.root / "file", unfinished) as new:
                self.assertFalse(new.exists())
                new.write_text("new")
                self.assertEqual("old", (self.root / "file").read_text())
            self.assertEqual("new", (self.root / "file").read_text())
            self.assertEqual(["file"], os.listdir(self.root))

    def test_an_fd_is_closed_once_where_eventlet_replaces_functions_of_os(self) -> None:
        for name in green.__patched__:
            self.useFixture(fixtures.MonkeyPatch(f"os.{name}", getattr(green, name)))
        self.directory.write("file", b"content")
        self.assertEqual(b"content", self.directory.read("file"))
        self.assertEqual(["file"], os.listdir(self.root))

    def half_written(self, unfinished: str | None) -> None:
        with replacing(self.root / "file", unfinished) as new:
            new.write_text("half")
            raise KeyError("full")

    def test_names_leave_out_temporary_files(self) -> None:
        (self.root / f"{UNFINISHED}1").write_text("")
        self.directory.write("file", b"")
        self.assertEqual(["file"], self.directory.names())

    def test_no_name_leads_out_of_the_directory(self) -> None:
        for name in ("", ".", "..", "../secret", "/etc/passwd", "a/b", "a\0"):
            for call in (self.directory.read, self.directory.unlink, self.directory.stat, self.directory.child,
                         lambda name: self.directory.write(name, b"")):
                with self.subTest(name=name):
                    self.refused(errno.EPERM, call, name)

    def test_read_refuses_a_link(self) -> None:
        (self.root / "link").symlink_to(self.secret)
        self.refused(errno.ELOOP, self.directory.read, "link")

    def test_fifo_device_socket_and_directory_are_refused_at_once(self) -> None:
        os.mkfifo(self.root / "fifo")
        (self.root / "directory").mkdir()
        done = []

        def work() -> None:
            for name in ("fifo", "directory"):
                self.refused(errno.EPERM, self.directory.read, name)
            self.refused(errno.ENXIO, self.directory.open, "fifo", os.O_WRONLY)
            done.append(True)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(30)
        self.assertEqual([True], done)

    def test_read_refuses_a_larger_file(self) -> None:
        self.directory.write("file", b"12345")
        self.assertEqual(b"12345", self.directory.read("file", 5))
        self.refused(errno.EFBIG, self.directory.read, "file", 4)

    def test_open_demands_owner(self) -> None:
        self.directory.write("file", b"")
        self.assertIn(f"belongs to user {os.getuid()}, not 4242", self.refused(
            errno.EPERM, self.directory.open, "file", owner=4242))
        os.close(self.directory.open("file", owner=os.getuid()))

    def test_a_refused_file_is_not_truncated(self) -> None:
        self.directory.write("file", b"content")
        self.refused(errno.EPERM, self.directory.open, "file", os.O_WRONLY | os.O_TRUNC, owner=4242)
        self.assertEqual(b"content", self.directory.read("file"))
        os.close(self.directory.open("file", os.O_WRONLY | os.O_TRUNC))
        self.assertEqual(b"", self.directory.read("file"))

    def test_child_follows_no_link_at_any_depth(self) -> None:
        (self.outside / "deep").mkdir()
        (self.root / "link").symlink_to(self.outside)
        (self.root / "directory").mkdir()
        (self.root / "directory" / "link").symlink_to(self.outside)
        for names in (("link",), ("link", "deep"), ("directory", "link"), ("directory", "link", "deep")):
            for create in (False, True):
                with self.subTest(names=names, create=create):
                    self.refused(errno.ENOTDIR, self.directory.child, *names, create=create)

    def test_child_is_made_with_the_exact_mode_and_kept_as_it_is(self) -> None:
        before = os.umask(0o077)
        self.addCleanup(os.umask, before)
        with self.directory.child("one", "two", create=True, mode=0o755) as child:
            child.write("file", b"")
        self.directory.child("one", create=True, mode=0o700).close()
        self.assertEqual([0o755, 0o755], [self.mode("one"), self.mode("one/two")])
        self.refused(errno.ENOENT, self.directory.child, "three")

    def test_child_is_the_directory_that_was_opened_whatever_takes_its_name(self) -> None:
        with self.directory.child("directory", create=True) as child:
            (self.root / "directory").rename(self.root / "moved")
            (self.root / "directory").symlink_to(self.outside)
            child.write("file", b"mine")
        self.assertEqual(b"mine", (self.root / "moved" / "file").read_bytes())
        self.assertEqual(["secret"], os.listdir(self.outside))

    def test_no_fd_is_left_open(self) -> None:
        before = os.listdir("/proc/self/fd")
        self.directory.child("one", "two", create=True).close()
        self.directory.write("file", b"")
        self.refused(errno.ENOENT, self.directory.child, "one", "three")
        self.refused(errno.EPERM, self.directory.open, "file", owner=4242)
        self.refused(errno.EPERM, Directory, self.root, owner=4242)
        self.assertEqual(len(before), len(os.listdir("/proc/self/fd")))

    def test_directory_that_others_can_write_is_refused_where_an_owner_is_demanded(self) -> None:
        Directory(self.root, owner=os.getuid()).close()
        self.root.chmod(0o770)
        self.assertIn("mode 770", self.refused(errno.EPERM, Directory, self.root, owner=os.getuid()))

    def test_unlink_removes_the_link_itself_and_is_idempotent(self) -> None:
        (self.root / "link").symlink_to(self.secret)
        self.directory.unlink("link")
        self.directory.unlink("link")
        self.assertEqual([], self.directory.names())
        self.assertTrue(self.secret.exists())

    def test_stat_is_of_the_link_itself(self) -> None:
        (self.root / "link").symlink_to(self.secret)
        self.assertTrue(stat.S_ISLNK(self.directory.stat("link").st_mode))
