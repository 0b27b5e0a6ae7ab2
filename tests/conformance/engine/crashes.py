# SPDX-License-Identifier: Apache-2.0
"""Test that nothing is lost or left where the process that drives the engine is killed."""

import functools
import os
import signal
from collections.abc import Callable, Iterator

from containerhost.engines.contract import Containers, Status
from containerhost.engines.spec import Part
from tests import levels
from tests.conformance.engine import frame, interfaces, killing
from tests.conformance.engine.frame import TIMEOUT


@levels.exhaustive(frame.REPEATED, when=frame.INCUS)
class Crashes(interfaces.Interfaces):
    """Kill the process that drives the engine at steps of a call: the same call ends it, and deletion leaves nothing.
    """

    def killed(self, call: Callable[[Containers], object], undo: Callable[[], object]) -> Iterator[None]:
        """Let one process after another be killed in a call, each at a later step.

        :param undo: brings back the state before the call
        """
        total = killing.steps(lambda: call(self.another()))
        for step in killing.spread(self.id(), total):
            undo()
            killing.killed_at(step, lambda: call(self.another()))
            yield

    def delete(self) -> None:
        self.engine.delete("c1")
        self.assertEqual((False, []), (self.engine.exists("c1"), self.left()))

    def test_killed_in_a_creation(self):
        spec = self.spec()
        for _ in self.killed(lambda engine: engine.create(spec), self.delete):
            self.delete()
            self.engine.create(spec)
            self.engine.start("c1")
            self.assertEqual(Status.RUNNING, self.engine.container("c1").status)

    def test_killed_between_creation_and_start(self):
        grants = self.taken()
        spec = self.spec(parts=grants)

        def drive() -> None:
            self.another().create(spec)
            os.kill(os.getpid(), signal.SIGKILL)

        self.assertTrue(killing.killed_at(None, drive))
        self.engine.start("c1")
        self.engine.verify("c1", grants)

    def test_killed_in_a_start(self):
        grants = self.taken()
        self.engine.create(self.spec(parts=grants))
        for _ in self.killed(lambda engine: engine.start("c1"),
                             lambda: self.engine.stop("c1", timeout=TIMEOUT, force=True)):
            self.engine.start("c1")
            self.engine.verify("c1", grants)

    def test_killed_in_a_deletion(self):
        spec = self.spec(parts=self.taken())

        def run() -> None:
            self.engine.create(spec)
            self.engine.start("c1")

        run()
        for _ in self.killed(lambda engine: engine.delete("c1"), run):
            self.delete()
            self.all_back()

    def test_killed_in_an_attachment_or_a_detachment(self):
        for grant in self.ready():
            attach, detach = (functools.partial(self._change, way, grant) for way in ("attach", "detach"))
            for _ in self.killed(attach, functools.partial(detach, self.engine)):
                attach(self.engine)
                self.engine.verify("c1", [grant])
            for _ in self.killed(detach, functools.partial(attach, self.engine)):
                detach(self.engine)
                self.engine.verify("c1", [])

    @staticmethod
    def _change(way: str, part: Part, engine: Containers) -> None:
        getattr(engine, way)("c1", part)

    def test_killed_in_an_attachment_of_an_interface(self):
        nic = self.made()
        self.running()
        self.up()
        for _ in self.killed(lambda engine: engine.attach("c1", nic), lambda: self.engine.detach("c1", nic)):
            self.engine.attach("c1", nic)
            self.assertIn("eth0", self.inside("c1", "ls", "/sys/class/net")[1])
        self.engine.detach("c1", nic)
        self.back()
