# SPDX-License-Identifier: Apache-2.0
import errno
import os
import subprocess
import threading
import traceback
from pathlib import Path
from types import SimpleNamespace

import fixtures
import testtools

from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.errors import EngineBusy, HostActionFailed
from containerhost.linux.files import closing
from containerhost.linux.lock import FileLock, acquire, byte_held, byte_is_held

NOBODY = 65534


class FileLockTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.path = Path(self.useFixture(fixtures.TempDir()).path) / "new" / "lock"
        self.lock = FileLock(self.path, timeout=10)

    def test_one_holder_at_a_time(self):
        seen, inside = [], []

        def work():
            with self.lock.held():
                inside.append(1)
                seen.append(len(inside))
                inside.pop()

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([1] * 8, seen)

    def test_another_holder_is_waited_for_only_so_long(self):
        with self.lock.held():
            error = self.assertRaises(TimeoutError, FileLock(self.path, timeout=0.05).held().__enter__)
        self.assertIn(f"fuser {self.path}", str(error))
        with self.lock.held():
            pass

    def test_file_that_cannot_be_made_is_an_error_of_the_callers_kind(self):
        full = OSError(errno.ENOSPC, "No space left on device")
        self.useFixture(fixtures.MockPatchObject(FileLock, "_opened", side_effect=full))
        for failure, error in ((TimeoutError, OSError), (EngineBusy, HostActionFailed)):
            self.assertIn("No space left", str(self.assertRaises(error, self.lock.held(failure).__enter__)))

    def test_a_process_that_ends_lets_go(self):
        pid = os.fork()
        if pid == 0:
            self.lock.held().__enter__()
            os._exit(0)
        os.waitpid(pid, 0)
        with self.lock.held():
            pass


class ByteTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.path = self.directory / "new" / "locks"

    def held(self, offset, **more):
        return byte_held(self.path, offset, 0, **more)

    def test_one_holder_for_each_byte_also_within_a_process(self):
        with self.held(7):
            for _ in range(2):  # closing another fd of the file does not release the lock
                self.assertRaises(TimeoutError, self.held(7).__enter__)
            with self.held(8):
                pass
        with self.held(7, shared=True), self.held(7, shared=True):
            self.assertRaises(KeyError, self.held(7, failure=KeyError).__enter__)

    def test_question_finds_the_holder_and_keeps_nobody_from_the_lock(self):
        self.assertFalse(byte_is_held(self.path, 3))
        with byte_held(self.path, 3, 0):
            self.assertEqual((True, False), (byte_is_held(self.path, 3), byte_is_held(self.path, 4)))
        with closing(os.open(self.path, os.O_RDWR)):
            self.assertFalse(byte_is_held(self.path, 3))
            with byte_held(self.path, 3, 0, shared=True):
                self.assertTrue(byte_is_held(self.path, 3))

    def test_file_is_for_its_user_alone_and_no_link(self):
        with self.held(0):
            self.assertEqual([0o600, 0o700], [path.stat().st_mode & 0o777 for path in (self.path, self.path.parent)])
        self.path.unlink()
        self.path.symlink_to(self.directory / "elsewhere")
        error = self.assertRaises(OSError, self.held(0).__enter__)
        self.assertEqual((errno.ELOOP, ["new"]), (error.errno, os.listdir(self.directory)))


class InheritedTest(testtools.TestCase):
    def test_directory_is_locked_until_a_program_that_inherited_it_ends(self):
        directory = self.useFixture(fixtures.TempDir()).path
        with closing(os.open(directory, os.O_RDONLY)) as first, closing(os.open(directory, os.O_RDONLY)) as second:
            acquire(first, 0, directory)
            with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[first]) as program:
                os.dup2(second, first)  # closes it here
                error = self.assertRaises(TimeoutError, acquire, second, 0.05, directory)
                self.assertIn(f"fuser {directory}", str(error))
                program.stdin.close()
                program.wait()
            acquire(second, 0, directory)


class OtherUserTest(testtools.TestCase):
    """Root and a service that is not root use the same lock and records."""

    def setUp(self):
        super().setUp()
        self.base = Path(self.useFixture(fixtures.TempDir()).path)
        self.base.chmod(0o711)
        self.directory = self.base / "owners"
        self.directory.mkdir()
        os.chown(self.directory, NOBODY, NOBODY)

    def as_service(self, work) -> None:
        """Do it as the directory's owner."""
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                work()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        self.assertEqual(0, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def test_lock_that_root_took_first_is_the_services_too(self):
        lock = FileLock(self.directory / "lock", timeout=10)
        with lock.held():
            pass
        self.as_service(lambda: lock.held().__enter__())

    def test_lock_that_root_made_with_an_earlier_release_is_given_to_the_service(self):
        lock = FileLock(self.directory / "lock", timeout=10)
        os.close(os.open(lock.path, os.O_CREAT, 0o600))
        with lock.held():
            pass
        self.as_service(lambda: lock.held().__enter__())

    def test_directory_that_root_makes_is_the_services(self):
        lock = FileLock(self.directory / "deep/er/lock", timeout=10)
        with lock.held():
            pass
        self.as_service(lambda: lock.held().__enter__())

    def test_root_follows_no_link_and_gives_no_file_away(self):
        secret = self.base / "secret"
        secret.write_text("secret")
        empty = self.base / "empty"
        empty.touch()
        lock = FileLock(self.directory / "lock", timeout=10)
        for make in (lambda: lock.path.symlink_to(secret), lambda: lock.path.symlink_to(self.base / "new"),
                     lambda: os.mkfifo(lock.path)):
            make()
            self.assertRaises(OSError, lock.held().__enter__)
            lock.path.unlink()
        for file in (secret, empty):
            os.link(file, lock.path)
            with lock.held():
                pass
            lock.path.unlink()
            self.assertEqual(0, file.stat().st_uid)
        self.assertFalse((self.base / "new").exists())

    def test_records_that_root_changes_stay_the_services(self):
        before = os.umask(0o077)
        self.addCleanup(os.umask, before)
        gpu = Consumer("nova", "lxd", "one", "1"), SimpleNamespace(id="0000:17:00.0")
        store = AllocationStore(self.directory)
        store.claim([gpu[1]], gpu[0], lambda device: ())
        store.block(gpu[1].id, "not clean")

        def work() -> None:
            self.assertEqual({"0000:17:00.0"}, set(store.records()))
            store.begin_cleaning("0000:17:00.0")
            store.release("0000:17:00.0", gpu[0])

        self.as_service(work)
