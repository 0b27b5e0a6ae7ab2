"""What holds for the process that stands by for a driver of OpenNebula, for a case that has its actions."""

import contextlib
import os
import signal
import socket
from pathlib import Path

from containerhost.engines import Status
from onedriver.standby import client, server
from tests.functional_one.vms import Machine
from tests.waiting import await_that

ATTACH = ("02:00:0a:63:01:09", "-", "-", "dummy", "one-1-9")


class StandbyTests:
    """Beside a test case with a ``node`` and its actions."""

    def test_it_does_what_follows(self) -> None:
        own = self.standing_by()
        worked = work(own)
        machine = self.deployed(Machine())
        more = machine.changed(devices=(self.gpus[0],), attach="pci")
        self.ok("attach_nic", more, *ATTACH)
        self.assertEqual(0, self.node.probe("host/system").status)
        self.ok("detach_nic", more, ATTACH[0])
        self.assertEqual(own, self.standing_by())
        self.assertGreater(work(own), worked)

    def test_it_is_killed_between_and_during_actions(self) -> None:
        first = self.standing_by()
        os.kill(first, signal.SIGKILL)
        machine = self.deployed(Machine())
        second = self.standing_by()
        self.assertNotEqual(first, second)
        with self.node.begun("reset", machine) as process:
            await_that(lambda: children(second), "it is at work", pause=0.001)
            os.kill(second, signal.SIGKILL)
            self.assertEqual(0, process.wait(60))
        self.assertEqual(Status.RUNNING, self.status(machine))

    def standing_by(self) -> int:
        """:returns: the process, which there is after the first call"""
        self.assertEqual(0, self.node.probe("vm/execution").status)
        found: list[int] = []
        await_that(lambda: found.append(listening(client.place(self.node.driver))) or found[-1], "a process stands by")
        return found[-1]


def listening(place: str) -> int:
    """The process that does at a socket; 0 where none does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            connection.connect(place)
        except OSError:
            return 0
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, server.CREDENTIALS.size)
        return int(server.CREDENTIALS.unpack(peer)[0])


def work(process: int) -> int:
    """Ticks of processor time of its children that have ended, see proc(5)."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[13]) + int(fields[14])


def children(process: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return []
