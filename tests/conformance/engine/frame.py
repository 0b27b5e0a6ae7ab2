# SPDX-License-Identifier: Apache-2.0
"""Provide the base of engine tests: what an engine's test case brings, and the emulated host's devices.

Import the module, not its classes: each would else be a test of the importing module.
"""

import os
import subprocess
from pathlib import Path
from typing import Any, ClassVar, Protocol

import fixtures
import testtools

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.refusals import Request
from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.devices.grants import Grant, GrantOptions
from containerhost.devices.model import Kind, Role
from containerhost.engines.contract import Containers
from containerhost.engines.spec import ContainerSpec, Mount
from containerhost.inventory.scan import HostView, scan
from containerhost.privileged import Privileged
from tests.functional.lxd import memlock
from tests.waiting import await_that

MiB = 1 << 20
# Incus runs the same engine through LXD's API: tests that hardly depend on it are repeated at the exhaustive level.
INCUS = Path(os.environ.get("LXD_PROGRAM", "")).name == "incusd"
REPEATED = "the gate has it on LXD, with the same engine of this project"
EACCES, EPERM = "Permission denied", "Operation not permitted"
ENODEV = "No such device"  # of a number that no driver has; ENXIO of one that a driver has no device for
ENXIO = f"{ENODEV} or address"
TIMEOUT = 60  # s; for what ends at once where it works
# The host's Python, for what a small image has no program for.
PYTHON = tuple(Mount(name or "usr", str(Path("/usr", name)), f"/{name or 'usr'}") for name in ("lib", "lib64", "")
               if Path("/usr", name).exists())


class Daemon(Protocol):
    """A real daemon of the tests' own; its containers run on while it does not."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...


class EngineFrame(testtools.TestCase):
    """Declare what an engine's own base class brings.

    :cvar label: the mark that :meth:`spec` gives a container
    :ivar daemon: the tests' own
    :ivar engine: on it
    """

    label: ClassVar[str]
    daemon: Daemon
    engine: Any

    def another(self) -> Containers:
        """Return one more engine on the daemon, as another process would have it."""
        raise NotImplementedError

    def spec(self, name: str = "c1", **more: Any) -> ContainerSpec:
        """Return the spec of a small container."""
        raise NotImplementedError

    def up(self, name: str = "c1") -> None:
        """Wait until its first program can be asked to end."""
        raise NotImplementedError

    def left(self, name: str = "c1") -> list[str]:
        """Return what is left on the host of a container that was deleted."""
        raise NotImplementedError

    def directory(self) -> Path:
        """Return a directory whose content a container may be shown."""
        raise NotImplementedError

    def inside(self, name: str, *command: str) -> tuple[int, str]:
        """Run a command in the container and return its exit status and output."""
        done = self.engine.execute(name, command, b"", timeout=TIMEOUT)
        return done.status, done.output.decode()

    def running(self, name: str = "c1", **more: Any) -> str:
        self.engine.create(self.spec(name, **more))
        self.engine.start(name)
        return name

    def restart(self, *, force: bool = False) -> None:
        self.engine.stop("c1", timeout=TIMEOUT, force=force)
        self.engine.start("c1")


class DeviceFrame(EngineFrame):
    """Gives devices to containers; after each test every one is what it was, and nothing is left of the containers.

    :ivar gpus, vfs: of the emulated host
    :ivar before: every device as it is to be again after the test
    """

    privileged: ClassVar[type[Privileged]] = Privileged

    def setUp(self) -> None:
        super().setUp()
        self.store = AllocationStore(Path(self.useFixture(fixtures.TempDir()).path))
        self.allocator = DeviceAllocator(self.store, HostView, self.privileged(), self.engine.held)
        devices = scan().devices
        self.gpus = [device for device in devices if device.kind is Kind.GPU]
        self.vfs = [device for device in devices if device.role is Role.VF]
        self.before, self.links, self.loops = picture(), links(), loops(self.directory())
        self.addCleanup(self._everything_is_back)

    def _everything_is_back(self) -> None:
        """Runs before the fixture deletes containers, so it deletes them itself."""
        names = [container.name for container in self.engine.containers()]
        for name in names:
            self.engine.delete(name)
        for record in self.store.records().values():
            self.assertEqual((), self.allocator.release(record.consumer))
        self.assertEqual({}, self.store.records())
        self.all_back()
        for name in names:
            self.assertEqual([], self.left(name))
        self.assertEqual((self.links, self.loops), (links(), loops(self.directory())))

    def all_back(self) -> None:
        # The kernel's interfaces exist immediately, their emulated /sys a moment later.
        await_that(lambda: self.before == picture(), "every device is what it was")

    def consumer(self, name: str = "c1") -> Consumer:
        return Consumer("test", self.engine.name, name, f"uuid-of-{name}")

    def requests(self, number: int = 0, **options: Any) -> tuple[Request, Request]:
        """Return requests for a GPU and a VF."""
        return (Request(self.gpus[number].id),
                Request(self.vfs[number].id, GrantOptions(netdev_name="ib0", memlock=memlock(), **options)))

    def taken(self, number: int = 0, name: str = "c1") -> tuple[Grant, ...]:
        return self.allocator.acquire(self.requests(number), self.consumer(name))

    def acquired(self, name: str, requests: tuple[Request, ...]) -> tuple[Grant, ...]:
        """Run a container with what is asked for."""
        grants = self.allocator.acquire(requests, self.consumer(name))
        self.running(name, parts=grants)
        return grants

    def ready(self, name: str = "c1", number: int = 0) -> tuple[Grant, ...]:
        """Run a container that has no device, made so that it can get those of ``number``; return their grants."""
        grants = self.taken(number, name)
        self.engine.create(self.spec(name, parts=grants))
        self.engine.update_devices(name, ())
        self.engine.start(name)
        self.up(name)
        self.engine.verify(name, ())
        return grants

    def veth(self, name: str) -> str:
        """Make a pair of interfaces of the host.

        :returns: the name of the other end
        """
        peer = f"{name}p"
        subprocess.run(["ip", "link", "add", name, "type", "veth", "peer", "name", peer], check=True)
        self.addCleanup(subprocess.run, ["ip", "link", "delete", name], check=True)
        return peer


def picture() -> dict[str, tuple[object, ...]]:
    """Return what a device must be again after its release."""
    return {device.id: (device.netdev, device.mac, device.rdma, device.nodes, device.health, device.host_use)
            for device in scan().devices}


def links() -> set[str]:
    """Return the names of the host's interfaces, which the emulated /sys may show later."""
    shown = subprocess.run(["ip", "-brief", "link"], check=True, capture_output=True, text=True).stdout
    return {line.split()[0].partition("@")[0] for line in shown.splitlines()}


def loops(directory: Path) -> set[str]:
    """Return the loop devices over files of a directory: those of other processes come and go."""
    shown = subprocess.run(["losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE"], check=True,
                           capture_output=True, text=True).stdout
    return {line.split()[0] for line in shown.splitlines() if f" {directory}/" in line}
