# SPDX-License-Identifier: Apache-2.0
"""A card's own virtual functions in containers: at boot and hot, given back, and gone from under one."""

from pathlib import Path

import fixtures
from testtools.matchers import Contains

from containerhost import errors
from containerhost.allocation.allocator import DeviceAllocator
from containerhost.allocation.refusals import Request
from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.devices.grants import Grant, GrantOptions
from containerhost.engines.contract import Status
from containerhost.engines.lxd.engine import LxdEngine
from containerhost.engines.spec import ContainerSpec, Cpu, Memory, RootDisk
from containerhost.inventory.scan import HostView, scan
from containerhost.privileged import Privileged
from tests.functional import lxd
from tests.vm import hardware
from tests.vm.hardware import enable, enabled, functions, links

MIB = 2**20
TIMEOUT = 300  # s that the daemon may take for anything; without KVM it is slow
OWNER = Consumer("test", "lxd", "c1", "uuid-of-c1")


class FunctionsInContainers(hardware.RealDevices):
    def setUp(self) -> None:
        self.useFixture(fixtures.MonkeyPatch("tests.functional.lxd.READY_TIMEOUT", TIMEOUT))
        super().setUp()
        self.lxd = self.useFixture(lxd.Lxd())
        self.engine = LxdEngine(self.lxd.daemon.client(request_timeout=TIMEOUT), locks=self.lxd.daemon.base)
        self.store = AllocationStore(Path(self.useFixture(fixtures.TempDir()).path))
        self.allocator = DeviceAllocator(self.store, HostView, Privileged(), self.engine.held)
        self.vf = self.vfs[0]

    def granted(self, **options: object) -> Grant:
        request = Request(self.vf.id, GrantOptions(netdev_name="eth0", **options))
        return self.allocator.acquire([request], OWNER)[0]

    def running(self, *grants: Grant) -> None:
        spec = ContainerSpec("c1", self.lxd.imported(), Cpu(1), Memory(128 * MIB), RootDisk(lxd.POOL), parts=grants)
        self.engine.create(spec)
        self.engine.start("c1")
        self.engine.verify("c1", grants)

    def inside(self) -> dict[str, str]:
        """Interface -> MAC."""
        told = links(of=self.engine.metrics("c1").pid)
        return {link["ifname"]: link["address"] for link in told if link["ifname"] != "lo"}

    def assert_away(self) -> None:
        now = scan().get(self.vf.id)
        self.assertEqual(("igbvf", None, True), (now.driver, now.netdev, now.netdev_away))

    def assert_back(self) -> None:
        now = scan().get(self.vf.id)
        self.assertEqual((self.vf.driver, self.vf.netdev, False, ()),
                         (now.driver, now.netdev, now.netdev_away, now.health))
        self.assertEqual({}, self.store.records())

    def test_at_boot(self) -> None:
        self.running(self.granted())
        self.assertEqual(["eth0"], list(self.inside()))
        self.assert_away()
        self.engine.stop("c1", timeout=TIMEOUT, force=True)
        self.engine.start("c1")
        self.assertEqual(["eth0"], list(self.inside()))
        self.engine.delete("c1")
        self.assertEqual((), self.allocator.release(OWNER))
        self.assert_back()

    def test_while_it_runs(self) -> None:
        self.running()
        before = self.engine.pid("c1")
        grant = self.granted()
        self.engine.attach("c1", grant)
        self.engine.verify("c1", [grant])
        self.assertEqual({"eth0": self.vf.mac}, self.inside())
        self.assert_away()
        self.engine.detach("c1", grant)
        self.assertEqual((), self.allocator.release_device(self.vf.id, OWNER, before))
        self.assert_back()
        self.assertEqual(({}, before), (self.inside(), self.engine.pid("c1")))

    def test_the_card_is_told_to_have_none(self) -> None:
        """The kernel takes a function out of a running container; the container goes on without."""
        grant = self.granted()
        self.running(grant)
        before = self.engine.pid("c1")
        enable(0)
        self.assertEqual([], functions())
        error = self.assertRaises(errors.NotAsGranted, self.engine.verify, "c1", [grant])
        self.assertThat(str(error), Contains("interface eth0 is missing"))
        self.assertEqual((f"{self.vf.id}: this host has no such device any more",), self.allocator.faults(OWNER))
        self.assertEqual((Status.RUNNING, before), (self.engine.container("c1").status, self.engine.pid("c1")))
        self.engine.delete("c1")
        (complaint,) = self.allocator.release(OWNER)
        self.assertThat(complaint, Contains("this host has no device"))
        enabled()
        self.assertRaises(errors.DeviceHeld, self.allocator.acquire, [Request(self.vf.id)],
                          Consumer("test", "lxd", "c2", "uuid-of-c2"))
        self.assertEqual((), self.allocator.release(OWNER))
        self.assert_back()
