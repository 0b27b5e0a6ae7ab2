# SPDX-License-Identifier: Apache-2.0
"""Test the metrics of a container."""

import os
import subprocess
import time

from containerhost.engines.contract import InterfaceMetrics, Metrics, Status
from containerhost.engines.spec import Memory, Nic
from tests import levels
from tests.conformance.engine import frame
from tests.conformance.engine.frame import TIMEOUT, MiB
from tests.waiting import await_that

NEAR, FAR = "10.9.1.1", "10.9.1.2"  # the host's end, the container's


@levels.exhaustive(frame.REPEATED, when=frame.INCUS)
class Usage(frame.DeviceFrame):
    def test_metrics_are_plausible_and_grow(self):
        peer = self.veth("one-1-0")
        subprocess.run(["ip", "address", "add", f"{NEAR}/30", "dev", "one-1-0"], check=True)
        subprocess.run(["ip", "link", "set", "one-1-0", "up"], check=True)
        self.running(parts=(Nic("eth0", peer),), memory=Memory(64 * MiB))
        self.up()
        pid, began = self.engine.pid("c1"), time.monotonic()
        before = self.used(pid)
        self.net(["ip", "address", "add", f"{FAR}/30", "dev", "eth0"], ["ip", "link", "set", "eth0", "up"],
                 ["ping", "-c", "3", "-i", "0.2", "-w", str(TIMEOUT), NEAR])
        work = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; head -c 8388608 /dev/urandom > /big; sync"
        self.assertEqual((0, ""), self.inside("c1", "sh", "-c", work))
        await_that(lambda: all(self.used(pid).disks[name] >= size + 8 * MiB for name, size in before.disks.items()),
                   "the disk's use is told")
        after = self.used(pid)
        self.assertTrue(before.cpu_time < after.cpu_time < before.cpu_time + self.possible(began), (before, after))
        self.assertTrue(before.memory_peak <= after.memory_peak, (before, after))
        (one,), (two,) = before.interfaces, after.interfaces
        for field in InterfaceMetrics._fields[3:]:
            self.assertTrue(0 <= getattr(one, field) <= getattr(two, field), field)
        self.assertTrue(two.received_packets >= 3 and two.sent_packets >= 3, two)
        self.assertTrue(two.received_bytes >= 3 * 84 and two.sent_bytes >= 3 * 84, two)
        self.assertIn(two.mac, self.net(["ip", "-brief", "link", "show", "eth0"]))
        self.engine.delete("c1")

    def net(self, *commands: list[str]) -> str:
        """Run commands of the host with the container's interfaces; return what the last one prints."""
        for command in commands:
            done = subprocess.run(["nsenter", "--target", str(self.engine.pid("c1")), "--net", *command], check=True,
                                  capture_output=True, text=True)
        return done.stdout

    @staticmethod
    def possible(began: float) -> float:
        """Return the nanoseconds of CPU that this host has given since then, at most."""
        return (time.monotonic() - began) * (os.cpu_count() or 1) * 1e9

    def used(self, pid: int) -> Metrics:
        """Return the metrics of c1, which runs; the list of all reports the same."""
        found = self.engine.metrics("c1")
        (listed,) = (metrics for state, metrics in self.engine.measured() if state.name == "c1")
        told = self.engine.disks("c1")
        self.assertTrue(told is None or told.keys() == found.disks.keys(), told)
        for metrics in (found, listed):
            self.assertEqual((Status.RUNNING, pid), (metrics.status, metrics.pid))
            self.assertTrue(1 <= metrics.processes < 100, metrics)
            self.assertTrue(metrics.cpu_time > 0, metrics)
            self.assertTrue(0 < metrics.memory <= 64 * MiB and 0 < metrics.memory_peak <= 64 * MiB, metrics)
            self.assertTrue(metrics.swap >= 0, metrics)
            self.assertEqual(["eth0"], [interface.name for interface in metrics.interfaces])
        return found

    def test_metrics_of_what_is_frozen_and_of_what_is_stopped(self):
        self.running()
        pid = self.engine.pid("c1")
        self.engine.freeze("c1")
        self.assertEqual((Status.FROZEN, pid), (self.engine.metrics("c1").status, self.engine.metrics("c1").pid))
        self.engine.stop("c1", timeout=TIMEOUT, force=True)
        found = self.engine.metrics("c1")
        self.assertEqual((Status.STOPPED, None, 0, None),
                         (found.status, found.pid, found.processes, self.engine.pid("c1")))
