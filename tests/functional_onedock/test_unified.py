# SPDX-License-Identifier: Apache-2.0
"""VMs on a host that has control groups of version 2 alone: devices come and go while they run."""

import subprocess

import fixtures

from tests.conformance.engine.frame import ENXIO, EPERM
from tests.functional.drivercontract import NVIDIA
from tests.functional_docker.dockerd import Daemon
from tests.functional_one.vms import Machine
from tests.functional_onedock.base import OnedockCase
from tests.functional_onedock.test_parts import forget


class Unified(fixtures.Fixture):
    """In the emulated host's mount namespace. What limits the kernel keeps in version 1 on this machine, Docker leaves
    out."""

    def _setUp(self) -> None:
        subprocess.run(["mount", "-t", "cgroup2", "unified", "/sys/fs/cgroup"], check=True)
        self.addCleanup(subprocess.run, ["umount", "--lazy", "/sys/fs/cgroup"], check=True)


class UnifiedTest(OnedockCase):
    inline = False

    def daemon(self) -> Daemon:
        self.useFixture(Unified())
        return Daemon("--exec-opt", "native.cgroupdriver=cgroupfs")

    def test_no_huge_pages(self) -> None:
        """Anybody may map those of the host."""
        found = self.shell(self.deployed(Machine()), "cat /sys/fs/cgroup/hugetlb.[0-9]*B.max")
        self.assertEqual({"0"}, set(found.split()))

    def test_devices_come_and_go_while_it_runs(self) -> None:
        machine = self.deployed(Machine(devices=(self.vfs[0],)))
        self.shell(machine, "mknod /zero c 1 5; mknod /kept c 195 0")
        before = self.pid(machine)
        self.assertIn(EPERM, self.inside(machine, "cat", "/kept"))
        more = machine.changed(devices=(self.vfs[0], self.gpus[0]), attach="pci")
        for _ in range(2):
            for _ in range(2):
                self.ok("attach_nic", more, machine.mac(9), "-", "-", "dummy", "one-1-9")
            self.assertEqual("/dev/nvidia0\n", self.shell(machine, NVIDIA))
            self.assertIn(ENXIO, self.inside(machine, "cat", "/dev/nvidia0"))
            self.assertIn(EPERM, self.shell(machine, "mknod /other c 195 1; cat /other 2>&1"))
            self.assertEqual("0\n", self.shell(machine, "head -c 1 /zero > /dev/null; echo $?"))
            for _ in range(2):
                self.ok("detach_nic", more, machine.mac(9))
            self.assertEqual("", self.shell(machine, NVIDIA))
            self.assertIn(EPERM, self.inside(machine, "cat", "/kept"))
        self.assertEqual(before, self.pid(machine))
        self.ok("attach_nic", more, machine.mac(9), "-", "-", "dummy", "one-1-9")
        forget(before, (195, 0))
        self.assertIn(EPERM, self.inside(machine, "cat", "/dev/nvidia0"))
        self.assertEqual(0, self.node.probe("vm/monitor").status)
        self.assertIn(ENXIO, self.inside(machine, "cat", "/dev/nvidia0"))
        self.ok("reset", more)
        self.assertIn(ENXIO, self.inside(machine, "cat", "/dev/nvidia0"))
        # One that was there from the start goes as well.
        self.ok("detach_nic", more, machine.mac(9))
        self.assertIn(EPERM, self.inside(machine, "cat", "/kept"))
        self.ok("detach_nic", machine.changed(attach="pci"), machine.mac(9))
        self.assertEqual("", self.shell(machine, "ls /sys/class/net | grep ib"))
        uverbs = next(node for node in self.vfs[0].nodes if "uverbs" in node.path)
        self.assertIn(EPERM, self.shell(machine, f"mknod /verbs c {uverbs.major} {uverbs.minor}; cat /verbs 2>&1"))
