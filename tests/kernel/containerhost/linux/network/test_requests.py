# SPDX-License-Identifier: Apache-2.0
"""Let each request that is made of the kernel's network (by ``ip`` and ``tc``) fail, be late, or be the last one.

Each step of an interface's life is repeated after the fault, and has to succeed then, or the driver is killed and
begins anew. At the end no interface is left.
"""

import contextlib
import itertools
import os
import subprocess
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import testtools
from testtools.content import text_content

from containerhost.engines.network.veth import Pair, Shape, Veths, shaper
from containerhost.errors import HostActionFailed
from containerhost.linux import run as programs
from containerhost.linux.network import links
from containerhost.privileged import Privileged
from tests import levels

FAILS, LATE, HANGS, EMPTY, KILLED = "fails", "is late", "hangs", "answers nothing", "is the last one"
PAIR = Pair("taprequests0", "requests0", "02:00:00:00:00:07", "mark of a test", 1400)
BRIDGE = "requestsbr"
SHAPE = Shape(1_000_000, 2_000_000, 100_000)
RUN = programs.run


class Killed(BaseException):
    """The process ends here, as by kill -9."""


class Requests:
    """Count requests, and let one of them meet a fault.

    :ivar done: the requests so far
    """

    def __init__(self, at: int | None, fault: str) -> None:
        self._at, self._fault = at, fault
        self.done: list[str] = []

    def run(self, command: Sequence[str], timeout: float, **options: Any) -> subprocess.CompletedProcess[str]:
        fault = self._fault if len(self.done) == self._at else None
        self.done.append(" ".join(command))
        if fault == KILLED:
            raise Killed
        if fault == FAILS:
            return subprocess.CompletedProcess(command, 2, "", "RTNETLINK answers: Cannot allocate memory")
        if fault == HANGS:
            raise HostActionFailed(f"`{command[0]}` did not end within {timeout:g} s")
        found = RUN(command, timeout, **options)
        if fault == LATE:
            raise HostActionFailed(f"`{command[0]}` did not end within {timeout:g} s")
        return subprocess.CompletedProcess(command, 0, "", "") if fault == EMPTY else found


class RequestsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        for name in (PAIR.host_end, shaper(PAIR.host_end), BRIDGE):
            self.addCleanup(self.remove, name)
        RUN(["ip", "link", "add", "name", BRIDGE, "type", "bridge"], 30)
        self.veths = Veths(Privileged())
        self.life: tuple[Callable[[], object], ...] = (
            lambda: self.veths.make(PAIR), lambda: self.veths.join(PAIR.host_end, BRIDGE),
            lambda: self.veths.set_up(PAIR.host_end, True), lambda: self.veths.limit(PAIR.host_end, SHAPE, SHAPE),
            lambda: self.veths.limit(PAIR.host_end, None, None), lambda: self.veths.limit(PAIR.host_end, SHAPE, SHAPE),
            lambda: self.rename(PAIR.inner_end, "requests1"), lambda: self.rename("requests1", PAIR.inner_end),
            lambda: links.link_down_and_flush(PAIR.inner_end), lambda: self.veths.remove(PAIR.host_end))

    @staticmethod
    def rename(name: str, new: str) -> None:
        """Rename an interface that has not got the new name yet."""
        if links.exists(name):
            links.rename(name, new)

    @staticmethod
    def remove(name: str) -> None:
        RUN(["ip", "link", "delete", "dev", name], 30)

    def lived(self, at: int | None, fault: str = "") -> list[str]:
        """Let an interface live, with a fault at a request; return all requests."""
        requests = Requests(at, fault)
        with mock.patch.object(programs, "run", requests.run), mock.patch("containerhost.linux.network.links.LOG"):
            try:
                for step in self.life:
                    with contextlib.suppress(HostActionFailed):
                        step()
                        continue
                    step()
            except Killed:
                for mark in self.veths.marked(PAIR.mark):  # as a driver's start does with what nobody has
                    self.veths.remove(mark)
                for step in self.life:
                    step()
        return requests.done

    def test_each_request(self) -> None:
        requests, before = self.lived(None), set(os.listdir("/sys/class/net"))
        possible = list(itertools.product(range(len(requests)), (FAILS, LATE, HANGS, EMPTY, KILLED)))
        points, failures = levels.some("requests to the kernel's network", possible, {0}), []
        for at, fault in points:
            try:
                self.lived(at, fault)
            except HostActionFailed as error:
                failures.append(f"`{requests[at]}` {fault}: {error}")
            left = set(os.listdir("/sys/class/net")) - before
            if left:
                failures.append(f"`{requests[at]}` {fault}: {sorted(left)} are left")
                for name in left & {PAIR.host_end, shaper(PAIR.host_end)}:
                    self.remove(name)
        self.addDetail("points", text_content(f"{len(points)} of {len(possible)}"))
        self.assertEqual([], failures)
