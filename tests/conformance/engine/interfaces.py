# SPDX-License-Identifier: Apache-2.0
"""Test interfaces of the cloud, which come into a container and go back."""

from containerhost import errors
from containerhost.engines.contract import Status
from containerhost.engines.spec import Nic
from tests import levels
from tests.conformance.engine import frame
from tests.conformance.engine.frame import TIMEOUT
from tests.waiting import await_that


@levels.exhaustive(frame.REPEATED, when=frame.INCUS, tests=(
    "test_interface_comes_at_each_start_and_goes_at_each_end", "test_start_without_its_interface_is_refused"))
class Interfaces(frame.DeviceFrame):
    """An interface of the cloud: made on the host, moved into the container, and back at its end."""

    nic: Nic

    def made(self) -> Nic:
        """Make the interface."""
        self.nic = Nic("eth0", self.veth("one-1-0"))
        return self.nic

    @property
    def home(self) -> set[str]:
        return {"one-1-0", self.nic.parent}

    def has(self, *names: str) -> None:
        """Assert that the container has these of the host's interfaces, and the host has them not."""
        self.assertEqual(set(names), {"eth0"} & set(self.inside("c1", "ls", "/sys/class/net")[1].split()))
        self.assertEqual({"one-1-0"} if names else self.home, frame.links() - self.links)
        self.assertEqual(dict.fromkeys(names, self.nic.parent), dict(self.engine.container("c1").interfaces))

    def back(self) -> None:
        await_that(lambda: self.home <= frame.links(), "the interface is back")

    def test_interface_comes_at_each_start_and_goes_at_each_end(self):
        self.running(parts=(self.made(),))
        self.up()
        self.has("eth0")
        self.assertEqual({"eth0": self.nic.parent}, dict(self.engine.containers()[0].interfaces))
        for force in (False, True):
            self.restart(force=force)
            self.up()
            self.has("eth0")
        self.engine.stop("c1", timeout=TIMEOUT, force=True)
        self.back()
        self.engine.start("c1")
        self.has("eth0")
        self.engine.delete("c1")
        self.back()

    def test_interface_is_attached_and_detached_while_it_runs(self):
        self.running()
        self.up()
        self.made()
        for _ in range(2):
            for _ in range(2):
                self.engine.attach("c1", self.nic)
                self.has("eth0")
            for _ in range(2):
                self.engine.detach("c1", self.nic)
                self.has()

    def test_start_without_its_interface_is_refused(self):
        self.engine.create(self.spec(parts=(Nic("eth0", "nowhere0"),)))
        error = self.assertRaises(errors.EngineError, self.engine.start, "c1")
        self.assertIn("nowhere0", str(error))
        self.assertEqual(Status.STOPPED, self.engine.container("c1").status)
