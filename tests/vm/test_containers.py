# SPDX-License-Identifier: Apache-2.0
"""A card's own virtual functions in containers: at boot and hot, given back, and gone from under one."""

from testtools.matchers import Contains

from containerhost import errors
from containerhost.allocation.refusals import Request
from containerhost.devices.grants import Grant
from containerhost.engines.contract import Status
from containerhost.engines.spec import ContainerSpec, Cpu, Memory, RootDisk
from containerhost.inventory.scan import scan
from tests.functional import lxd
from tests.vm.containers import MIB, TIMEOUT, InContainers, consumer
from tests.vm.hardware import RealDevices, enable, enabled, functions

OWNER = consumer("c1")


class FunctionsInContainers(InContainers, RealDevices):
    def setUp(self) -> None:
        super().setUp()
        self.vf = self.vfs[0]

    def granted(self) -> Grant:
        return self.acquired(self.vf, "c1", netdev_name="eth0")

    def running(self, *grants: Grant) -> None:
        spec = ContainerSpec("c1", self.lxd.imported(), Cpu(1), Memory(128 * MIB), RootDisk(lxd.POOL), parts=grants)
        self.engine.create(spec)
        self.engine.start("c1")
        self.engine.verify("c1", grants)

    def assert_away(self) -> None:
        now = scan().get(self.vf.id)
        self.assertEqual(("igbvf", None, True), (now.driver, now.netdev, now.netdev_away))

    def test_at_boot(self) -> None:
        self.running(self.granted())
        self.assertEqual(["eth0"], list(self.inside("c1")))
        self.assert_away()
        self.engine.stop("c1", timeout=TIMEOUT, force=True)
        self.engine.start("c1")
        self.assertEqual(["eth0"], list(self.inside("c1")))
        self.engine.delete("c1")
        self.assertEqual((), self.allocator.release(OWNER))
        self.assert_free(self.vf)

    def test_while_it_runs(self) -> None:
        self.running()
        before = self.engine.pid("c1")
        grant = self.granted()
        self.engine.attach("c1", grant)
        self.engine.verify("c1", [grant])
        self.assertEqual({"eth0": self.vf.mac}, self.inside("c1"))
        self.assert_away()
        self.engine.detach("c1", grant)
        self.assertEqual((), self.allocator.release_device(self.vf.id, OWNER, before))
        self.assert_free(self.vf)
        self.assertEqual(({}, before), (self.inside("c1"), self.engine.pid("c1")))

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
                          consumer("c2"))
        self.assertEqual((), self.allocator.release(OWNER))
        self.assert_free(self.vf)
