import os
import threading
from pathlib import Path

import fixtures
import testtools

from containerhost.filelock import FileLock


class FileLockTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.path = Path(self.useFixture(fixtures.TempDir()).path) / "new" / "lock"
        self.lock = FileLock(self.path, limit=10)

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
            error = self.assertRaises(TimeoutError, FileLock(self.path, limit=0.05).held().__enter__)
        self.assertIn(f"fuser {self.path}", str(error))
        with self.lock.held():
            pass

    def test_a_process_that_ends_lets_go(self):
        pid = os.fork()
        if pid == 0:
            self.lock.held().__enter__()
            os._exit(0)
        os.waitpid(pid, 0)
        with self.lock.held():
            pass
