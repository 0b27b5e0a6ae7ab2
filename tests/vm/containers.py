# SPDX-License-Identifier: Apache-2.0
"""Containers of a real LXD that have devices of the machine, and programs in them."""

import io
import json
import platform
from collections.abc import Sequence
from pathlib import Path

import fixtures
import testtools

from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.refusals import Request
from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.devices.grants import Grant, GrantOptions
from containerhost.devices.model import CharNode, Device
from containerhost.engines.contract import Command
from containerhost.engines.lxd.engine import LxdEngine
from containerhost.engines.spec import BridgedNic, ContainerSpec, Cpu, Memory, RootDisk
from containerhost.images import metadata
from containerhost.inventory.scan import HostView, scan
from containerhost.operator.selftest import rootimage
from containerhost.privileged import Privileged
from tests.functional import lxd
from tests.vm.hardware import links
from tests.waiting import await_that

MIB = 2**20
TIMEOUT = 300  # s that the daemon and programs may take for anything; without KVM they are slow
IMAGE = "programs"  # the guest's own
#: Open nodes, keep them open until a line is read, and print of each how three uses ended, before and after: a request
#: to its driver (DRM_IOCTL_VERSION), opening it anew by its descriptor, and by its path.
HOLD = """
import errno, fcntl, json, os, sys
def tried(act):
    try:
        act()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "works"
def state():
    return [[tried(lambda: fcntl.ioctl(node, 0xC0406400, bytearray(64))),
             tried(lambda: os.close(os.open(f"/proc/self/fd/{node}", os.O_RDWR))),
             tried(lambda: os.close(os.open(path, os.O_RDWR)))] for path, node in nodes.items()]
nodes = {path: os.open(path, os.O_RDWR) for path in sys.argv[2:]}
before = state()
open(sys.argv[1], "w").close()
sys.stdin.readline()
print(json.dumps([before, state()]))
"""
HELD = "/tmp/held"
WORKS = ["works"] * 3


def consumer(name: str) -> Consumer:
    return Consumer("test", "lxd", name, f"uuid-of-{name}")


class InContainers(testtools.TestCase):
    """:ivar allocator: of devices to the consumers that :func:`consumer` names"""

    def setUp(self) -> None:
        self.useFixture(fixtures.MonkeyPatch("tests.functional.lxd.READY_TIMEOUT", TIMEOUT))
        super().setUp()
        self.lxd = self.useFixture(lxd.Lxd())
        self.engine = LxdEngine(self.lxd.daemon.client(request_timeout=TIMEOUT), locks=self.lxd.daemon.base)
        self.store = AllocationStore(Path(self.useFixture(fixtures.TempDir()).path))
        self.allocator = DeviceAllocator(self.store, HostView, Privileged(), self.engine.held)

    def acquired(self, device: Device, name: str, **options: object) -> Grant:
        return self.allocator.acquire([Request(device.id, GrantOptions(**options))], consumer(name))[0]

    def started(self, name: str, *grants: Grant, nics: Sequence[BridgedNic] = ()) -> None:
        """Start a container that sees the guest's own programs, and require that it has exactly these devices."""
        store = self.lxd.store
        found = store.find(IMAGE)
        image = found.fingerprint if found else store.import_split(
            metadata.tarball(platform.machine()), io.BytesIO(rootimage.tarball()), IMAGE, {})
        self.engine.create(ContainerSpec(name, image, Cpu(1), Memory(256 * MIB), RootDisk(lxd.POOL),
                                         parts=(*grants, *nics), mounts=rootimage.mounts()))
        self.engine.start(name)
        self.engine.verify(name, grants)

    def run_in(self, name: str, *command: str, stdin: bytes = b"") -> tuple[int, str]:
        """Return the status and the output of a program in a container."""
        done = self.engine.execute(name, command, stdin, timeout=TIMEOUT)
        return done.status, (done.stdout + done.stderr).decode(errors="replace")

    def output(self, name: str, *command: str, stdin: bytes = b"") -> str:
        status, output = self.run_in(name, *command, stdin=stdin)
        self.assertEqual(0, status, output)
        return output

    def holding(self, name: str, nodes: Sequence[CharNode]) -> Command:
        """Return a program in a container that keeps nodes open; see :data:`HOLD`."""
        command = self.engine.command(name, self._hold(nodes))
        self.addCleanup(command.close)
        self.addCleanup(command.kill)
        held = Path(f"/proc/{self.engine.pid(name)}/root{HELD}")
        await_that(held.exists, f"{name} has {nodes} open", TIMEOUT)
        return command

    def uses(self, name: str, nodes: Sequence[CharNode]) -> list[list[str]]:
        """Return how a container can use nodes now."""
        return json.loads(self.output(name, *self._hold(nodes), stdin=b"\n"))[1]

    def _hold(self, nodes: Sequence[CharNode]) -> tuple[str, ...]:
        return ("python3", "-c", HOLD, HELD, *(node.path for node in nodes))

    def inside(self, name: str) -> dict[str, str]:
        """Interface -> MAC."""
        told = links(of=self.engine.pid(name))
        return {link["ifname"]: link["address"] for link in told if link["ifname"] != "lo"}

    def assert_free(self, device: Device) -> None:
        """Require that a device is as it was before it was given away."""
        now = scan().get(device.id)
        self.assertEqual((device.driver, device.netdev, False, ()),
                         (now.driver, now.netdev, now.netdev_away, now.health))
        self.assertNotIn(device.id, self.store.records())
