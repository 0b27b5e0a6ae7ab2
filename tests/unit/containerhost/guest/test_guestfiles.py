# SPDX-License-Identifier: Apache-2.0
import testtools

from containerhost.errors import EngineConflict, HostActionFailed
from containerhost.guest.guestfiles import GuestFiles
from containerhost.privileged import Privileged


class Slow(Privileged):
    """:ivar takes: seconds of each look"""

    def __init__(self) -> None:
        self.now, self.takes = 1000.0, 0.005

    def read_guest_file(self, pid: int, name: str) -> bytes | None:
        self.now += self.takes
        return str(pid).encode()

    def write_guest_file(self, pid: int, name: str, content: bytes) -> None:
        self.now += self.takes
        raise HostActionFailed("not done within 10 s")


class RateLimitTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host = Slow()
        self.pids: dict[str, int | None] = {"c1": 7, "c2": 8}
        self.files = GuestFiles(self.pids.get, self.host, lambda: self.host.now)

    def write(self) -> None:
        self.assertRaises(HostActionFailed, self.files.write, "c1", "resources.json", b"")

    def test_usual_looks_cost_nothing(self) -> None:
        for _ in range(10_000):
            self.assertEqual(b"7", self.files.read("c1", "ack.json"))
        self.pids["c1"] = None
        self.assertRaises(EngineConflict, self.files.read, "c1", "ack.json")

    def test_who_makes_the_host_wait_is_left_alone_also_after_it_restarted(self) -> None:
        self.host.takes = 10.0
        self.write()
        self.host.takes, self.pids["c1"] = 0.005, 9
        error = self.assertRaises(HostActionFailed, self.files.read, "c1", "ack.json")
        self.assertEqual("container c1 blocked the host at its files, so it is not accessed for 270 s", str(error))
        self.assertEqual(b"8", self.files.read("c2", "ack.json"))
        self.host.now += 271
        self.assertEqual(b"9", self.files.read("c1", "ack.json"))

    def test_short_waits_add_up(self) -> None:
        self.host.takes = 0.7
        begin, waited = self.host.now, 0
        while self.host.now < begin + 600:
            try:
                self.files.read("c1", "ack.json")
                waited += 1
            except HostActionFailed:
                self.host.now += 1
        self.assertLess(waited * 0.7, 0.1 * 600)
