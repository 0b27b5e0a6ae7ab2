# SPDX-License-Identifier: Apache-2.0
"""Write a packed root within a time limit: nothing of what was started goes on after it, and the error says so."""

import io
import time
from typing import Any

import testtools

from lxdone.root import root_packing
from onedriver.errors import DriverError

LIMIT = 0.3  # s


class Slow(io.RawIOBase):
    """Yield content for some seconds, as a large root does."""

    def __init__(self) -> None:
        self.end = time.monotonic() + 20

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        time.sleep(0.02)
        return len(buffer) if time.monotonic() < self.end else 0


class TimeLimitTest(testtools.TestCase):
    def test_time_limit_ends_every_program_of_the_write_back(self) -> None:
        command = ["sh", "-c", "cat > /dev/null; true"]  # as tar is a child of its shell
        error = self.assertRaises(DriverError, root_packing.feed, command, Slow(), LIMIT, "disk 0")
        self.assertIn("disk 0 cannot be written", str(error))
        self.assertIn("operation_timeout", str(error))

    def test_program_that_ends_in_time_has_read_everything(self) -> None:
        root_packing.feed(["sh", "-c", "[ $(wc -c) = 300000 ]"], io.BytesIO(b"x" * 300000), 30, "disk 0")
        error = self.assertRaises(DriverError, root_packing.feed, ["false"], io.BytesIO(b"x" * 300000), 30, "disk 0")
        self.assertNotIn("operation_timeout", str(error))
