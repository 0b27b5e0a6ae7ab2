# SPDX-License-Identifier: Apache-2.0
"""RDMA functions on LXD beyond what every engine can: limits of running containers, namespaces, functions that go."""

import os
import resource
import subprocess
from pathlib import Path

from testtools.matchers import Contains

from containerhost import errors
from containerhost.allocation.refusals import Request
from containerhost.devices.grants import GrantOptions
from containerhost.inventory.scan import scan
from containerhost.linux.process import processlimits
from tests.functional.containerhost.test_lxd_devices import DeviceTestCase
from tests.functional.lxd import memlock


class TestMemlock(DeviceTestCase):
    def test_a_running_container_gets_the_memlock_that_comes_with_a_function(self):
        """Also the processes that run, and what is started later."""
        self.running("c1")
        pid = self.engine.metrics("c1").pid
        _, most = resource.prlimit(pid, resource.RLIMIT_MEMLOCK)
        resource.prlimit(pid, resource.RLIMIT_MEMLOCK, (65536, most))
        _, function = self.allocator.acquire(self.requests(0), self.consumer("c1"))
        self.engine.attach("c1", function)
        self.engine.verify("c1", [function])
        wanted = processlimits.value(memlock())
        self.assertEqual((wanted, wanted), resource.prlimit(pid, resource.RLIMIT_MEMLOCK))
        self.engine.stop("c1", timeout=20, force=True)
        self.engine.start("c1")
        self.engine.verify("c1", [function])

    def test_limits_that_cannot_be_raised_are_refused_before_anything_comes(self):
        if memlock() == "unlimited":
            self.skipTest("this machine raises any limit")
        self.running("c1", limits={"memlock": "65536"})
        wanted = Request(self.vfs[0].id, GrantOptions("ib0", memlock=str(1 << 60)))
        (function,) = self.allocator.acquire([wanted], self.consumer("c1"))
        error = self.assertRaises(errors.HostActionFailed, self.engine.attach, "c1", function)
        self.assertThat(str(error), Contains("cannot raise limits"))
        self.engine.verify("c1", [])


class TestExclusiveRdma(DeviceTestCase):
    """A host that keeps each RDMA device in one network namespace."""

    def setUp(self):
        super().setUp()
        subprocess.run(["rdma", "system", "set", "netns", "exclusive"], check=True)
        self.addCleanup(self.control.set_rdma_namespaces, False)
        self.vf = self.vfs[0]

    def is_home(self):
        return not scan().get(self.vf.id).rdma.away

    def test_the_device_goes_along_and_comes_home(self):
        grants = self.acquired("c1", self.requests(0))
        self.assertTrue(self.is_home())
        for _ in range(2):  # a reader that once moved it finds it in its place
            self.engine.verify("c1", grants)
            self.assertFalse(self.is_home())
        self.assertEqual([], [name for name in os.listdir("/run/netns") if name.startswith("containerhost-")])
        again = self.allocator.acquire(self.requests(0), self.consumer("c1"))
        self.assertEqual(grants[1].nodes, again[1].nodes)
        self.engine.delete("c1")
        self.assertEqual((), self.allocator.release(self.consumer("c1")))
        self.assertTrue(self.is_home())

    def test_while_it_runs(self):
        self.running("c1")
        (grant,) = self.allocator.acquire(self.requests(0)[1:], self.consumer("c1"))
        self.engine.attach("c1", grant)
        self.assertFalse(self.is_home())
        self.engine.verify("c1", [grant])
        self.engine.detach("c1", grant)
        self.assertEqual((), self.allocator.release(self.consumer("c1")))
        self.assertTrue(self.is_home())

    def test_a_driver_that_cannot_move_it(self):
        grants = self.acquired("c1", self.requests(0))
        self.control.set_rdma_namespaces(False)
        Path("/sys/module/ib_core/parameters/netns_mode").write_text("N\n")
        error = self.assertRaises(errors.HostActionFailed, self.engine.verify, "c1", grants)
        self.assertThat(str(error), Contains("rdma system set netns shared"))


class TestLostFunctions(DeviceTestCase):
    """A function that goes while a container has it: its card was told to have none."""

    def test_it_is_missed_kept_from_others_and_given_back_when_it_returns(self):
        vf = self.vfs[0]
        grants = self.acquired("c1", self.requests(0)[1:])
        self.control.set_num_vfs(vf.parent, 0)
        error = self.assertRaises(errors.NotAsGranted, self.engine.verify, "c1", grants)
        self.assertThat(str(error), Contains("interface ib0 is missing"))
        self.engine.delete("c1")
        (complaint,) = self.allocator.release(self.consumer("c1"))
        self.assertThat(complaint, Contains("this host has no device"))
        self.assertRaises(errors.DeviceNotFound, self.allocator.acquire, self.requests(0)[1:], self.consumer("c2"))
        self.control.set_num_vfs(vf.parent, len([each for each in self.vfs if each.parent == vf.parent]))
        self.assertRaises(errors.DeviceHeld, self.allocator.acquire, self.requests(0)[1:], self.consumer("c2"))
        self.assertEqual((), self.allocator.release(self.consumer("c1")))
        self.allocator.acquire(self.requests(0)[1:], self.consumer("c2"))
