# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import fixtures
import testtools

from containerhost.linux.lock import FileLock
from onedriver.errors import DriverError
from onedriver.node.imagelocks import Busy, ImageLocks, naming


class ImageLocksCase(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.file = Path(self.useFixture(fixtures.TempDir()).path) / "state/.locks"
        self.locks = ImageLocks(self.file, 0.1)


class ImageLocksTest(ImageLocksCase):
    def test_one_holder_for_each_image(self) -> None:
        with self.locks.held("a"):
            with self.locks.held("b"):
                pass
            error = self.assertRaises(Busy, self.locks.held("a").__enter__)
            self.assertRaises(Busy, self.locks.held("a", shared=True).__enter__)
        for part in ("the image a ", "0.1 s", f"fuser -v {self.file}", "Try again"):
            self.assertIn(part, str(error))
        with self.locks.held("a"):
            pass

    def test_several_share_it(self) -> None:
        with self.locks.held("a", shared=True), self.locks.held("a", shared=True):
            self.assertRaises(Busy, self.locks.held("a", wait=False).__enter__)
        with self.locks.held("a", wait=False):
            pass


class NamingTest(testtools.TestCase):
    def test_that_another_one_does_not_end_is_no_mistake_of_the_driver(self) -> None:
        lock = FileLock(Path(self.useFixture(fixtures.TempDir()).path) / "lock", 0.05)
        with naming(lock):
            error = self.assertRaises(DriverError, naming(lock).__enter__)
        self.assertIn(f"fuser {lock.path}", str(error))
        with naming(lock):
            pass
