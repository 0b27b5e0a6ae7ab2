# SPDX-License-Identifier: Apache-2.0
import threading

import testtools

from containerhost.errors import HostActionFailed
from containerhost.privileged import Privileged
from nova_lxd_ext.storage.volumecopy import PIECE, Copier

TIMEOUT = 60  # s


class Disk(Privileged):
    """:ivar size: bytes of the source
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.pieces: list[tuple[int, int]] = []
        self.answers = threading.Event()
        self.answers.set()

    def copy_block(self, source: str, target: str, place: int, size: int) -> int:
        self.answers.wait(TIMEOUT)
        copied = max(min(size, self.size - place), 0)
        self.pieces.append((place, copied))
        return copied


class CopierTest(testtools.TestCase):
    def test_piece_by_piece_to_the_end(self) -> None:
        disk = Disk(2 * PIECE + 5)
        Copier(disk, TIMEOUT).copy("/dev/a", "/dev/b")
        self.assertEqual([(0, PIECE), (PIECE, PIECE), (2 * PIECE, 5), (2 * PIECE + 5, 0)], disk.pieces)

    def test_a_backend_that_does_not_answer(self) -> None:
        disk = Disk(PIECE)
        disk.answers.clear()
        error = self.assertRaises(HostActionFailed, Copier(disk, 0.01).copy, "/dev/a", "/dev/b")
        self.assertIn("Copying /dev/a to /dev/b: not done within 0.01 s", str(error))
        disk.answers.set()
