# SPDX-License-Identifier: Apache-2.0
"""Devices, network interfaces and disks of VMs on Docker, at their start and while they run."""

import subprocess
from pathlib import Path

import fixtures

from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.devices.model import Device
from containerhost.linux import charnodes
from containerhost.linux.sysfs import Host
from tests import levels
from tests.conformance.engine.frame import ENXIO, EPERM
from tests.functional import drivercontract, leftdevicescontract, lostgpucontract
from tests.functional.drivercontract import NVIDIA
from tests.functional_one.vms import ROOT, Machine
from tests.functional_onedock.base import BOOT, CLEANUP, POWEROFF, RESUME, OnedockCase
from tests.waiting import await_that

SYS_RESOURCE = 24  # linux/capability.h
DISK = ("<DISK><DISK_ID>{number}</DISK_ID><TYPE>{kind}</TYPE><FORMAT>raw</FORMAT><SIZE>8</SIZE>{more}</DISK>")
MARK = "<ATTACH>YES</ATTACH>"
PLACE = ("/var/lib/one//datastores/0/1/disk.3", "sdc", "2")


def disk(number: int, more: str = "", kind: str = "fs") -> str:
    return DISK.format(number=number, more=more, kind=kind)


def addressed(*addresses: str) -> tuple[tuple[str, str], ...]:
    """A context with an address for each NIC of VM 1."""
    pairs = ((f"ETH{place}_MAC", Machine().mac(place), f"ETH{place}_IP", address)
             for place, address in enumerate(addresses))
    return tuple(entry for mac, number, ip, address in pairs for entry in ((mac, number), (ip, address)))


def forget(pid: int, number: tuple[int, int]) -> None:
    """Remove a node from a container's control group, as `systemctl daemon-reload` does."""
    charnodes.permit(pid, number, False)


def may_grow() -> bool:
    """Return whether the kernel lets this process resize a mounted ext4 (CAP_SYS_RESOURCE)."""
    fields = Host().fields("/proc/self/status")
    return bool(int(fields["CapEff"], 16) >> SYS_RESOURCE & 1)


@levels.exhaustive("the other one of its kind stays", tests=("test_exactly_the_chosen_devices",))
class DevicesTest(drivercontract.DevicesContract, OnedockCase):
    def test_a_device_that_a_container_on_lxd_has_is_refused(self) -> None:
        store, other = AllocationStore(self.node.owners), Consumer("lxdone", "lxd", "one-7", "7")
        store.claim([self.gpus[0]], other, lambda device: ())
        machine = Machine(devices=(self.gpus[0],))
        self.node.give_disk(machine)
        self.refused("one-7", "deploy", machine, lcm=BOOT)
        self.assertFalse(self.engine.exists("one-1"))
        self.deployed(machine.changed(devices=()))
        self.refused("one-7", "attach_nic", machine.changed(attach="pci"), machine.mac(9), "-", "-", "dummy", "one-1-9")
        store.release(self.gpus[0].id, other)

    def check_attached(self, machine: Machine, device: Device) -> None:
        """Docker sets its limits anew, and leaves what was given."""
        self.ok("resize", machine.changed(memory=192))
        if device is self.gpus[0]:
            self.assertIn("No such device", self.shell(machine, "cat /dev/nvidia0"))

    def test_what_systemd_forgets_is_allowed_again_by_the_next_round_of_monitoring(self) -> None:
        machine = self.deployed()
        more = machine.changed(devices=(self.gpus[0],), attach="pci")
        self.ok("attach_nic", more, machine.mac(9), "-", "-", "dummy", "one-1-9")
        forget(self.pid(machine), (195, 0))
        self.assertIn(EPERM, self.inside(machine, "cat", "/dev/nvidia0"))
        self.assertEqual(0, self.node.probe("vm/monitor").status)
        self.assertIn(ENXIO, self.inside(machine, "cat", "/dev/nvidia0"))
        self.ok("detach_nic", more, machine.mac(9))
        self.shell(machine, "mknod /kept c 195 0")
        self.assertEqual(0, self.node.probe("vm/monitor").status)
        self.assertIn(EPERM, self.inside(machine, "cat", "/kept"))

    def check_refused(self, machine: Machine, arguments: tuple[str, ...]) -> None:
        self.refused("which are fixed when", "attach_nic", machine.changed(devices=(self.vfs[0],), attach="pci"),
                     *arguments)
        self.refused("no-such-br", "attach_nic", machine.changed(nics=(1,), bridge="no-such-br", attach="nic"),
                     *arguments)
        self.assertEqual({}, self.engine.container("one-1").interfaces)
        self.assertNotIn("one-1", subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout)


class LeftDevicesTest(leftdevicescontract.LeftDevicesContract, OnedockCase):
    pass


class LibrariesTest(OnedockCase):
    """Test the libraries of NVIDIA's driver; what stands in for NVIDIA's tool mounts as it does."""

    inline = False

    def test_they_come_with_a_gpu_at_every_start(self) -> None:
        self.node.configure('gpu_capabilities = ["compute", "utility"]\n')
        machine = self.deployed(Machine(devices=(self.gpus[0],)))
        version = Host().text("/proc/driver/nvidia/version")
        for _ in range(2):
            self.assertEqual(version, self.inside(machine, "cat", "/usr/lib/x86_64-linux-gnu/libcuda.so.1").strip())
            self.assertEqual("/usr/bin/nvidia-smi\n", self.inside(machine, "which", "nvidia-smi"))
            self.assertEqual("/dev/nvidia0\n", self.shell(machine, NVIDIA))
            self.ok("reset", machine)
        more = machine.changed(devices=(self.gpus[0], self.gpus[1]), attach="pci")
        self.ok("attach_nic", more, machine.mac(9), "-", "-", "dummy", "one-1-9")
        for place in (self.gpus[1], self.gpus[0]):
            self.ok("detach_nic", machine.changed(devices=(place,), attach="pci"), machine.mac(9))
        self.ok("cancel", machine, lcm=POWEROFF)
        self.ok("deploy", machine.changed(devices=()), lcm=RESUME)
        self.assertNotIn(version, self.inside(machine, "cat", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"))

    def test_libraries_of_the_image_are_not_mounted(self) -> None:
        """NVIDIA's tool finds them by paths that the tenant made, as the host's root (CVE-2025-23359)."""
        self.node.configure('gpu_capabilities = ["compute"]\n')
        secret = Path(self.useFixture(fixtures.TempDir()).path) / "secret"
        secret.write_text("the host's")
        machine = self.deployed(Machine(devices=(self.gpus[0],)))
        self.shell(machine, f"mkdir -p /usr/local/cuda/compat; ln -s {secret} /usr/local/cuda/compat/libcuda.so.999")
        self.ok("reset", machine)
        self.assertIn("No such file", self.inside(machine, "cat", "/usr/lib/x86_64-linux-gnu/libcuda.so.999"))

    @levels.exhaustive("the other one of its kind stays")
    def test_one_that_was_started_without_is_told_so(self) -> None:
        self.node.configure('gpu_capabilities = ["compute"]\n')
        machine = self.deployed()
        more = machine.changed(devices=(self.gpus[0],), attach="pci")
        self.refused("are mounted when container one-1 starts", "attach_nic", more, machine.mac(9), "-", "-", "dummy",
                     "one-1-9")
        self.assertEqual({}, AllocationStore(self.node.owners).records())


class NicsTest(lostgpucontract.LostGpuContract, OnedockCase):
    def test_a_nic_comes_and_goes_while_it_runs(self) -> None:
        machine = self.deployed(Machine(nics=(0,), context=addressed("10.1.0.5")))
        more = machine.changed(nics=(0, 1), attach="nic", context=addressed("10.1.0.5", "10.2.0.5"))
        for _ in range(2):
            self.ok("attach_nic", more, machine.mac(1), "one-br0", "-", "dummy", "one-1-1")
        self.assertIn(machine.mac(1), self.inside(machine, "cat", "/sys/class/net/eth1/address"))
        self.assertIn("10.2.0.5/24", self.inside(machine, "ip", "addr", "show", "eth1"))
        self.assertIn("one-1-1", self.ports())
        self.ok("reset", more)
        self.assertIn("10.2.0.5/24", self.inside(machine, "ip", "addr", "show", "eth1"))
        for _ in range(2):
            self.ok("detach_nic", more, machine.mac(1))
        self.assertIn("No such file", self.inside(machine, "ls", "/sys/class/net/eth1"))
        self.assertNotIn("one-1-1", self.ports())
        self.assertIn("10.1.0.5/24", self.inside(machine, "ip", "addr", "show", "eth0"))

    def test_two_vms_reach_each_other_over_the_bridge(self) -> None:
        self.deployed(Machine(nics=(0,), context=addressed("10.1.0.5")))
        other = self.deployed(Machine(2, nics=(0,), context=(("ETH0_MAC", Machine(2).mac(0)), ("ETH0_IP", "10.1.0.6"))))
        subprocess.run(["ip", "link", "set", "one-br0", "up"], check=True)
        self.assertIn(" 0% packet loss", self.inside(other, "ping", "-c", "1", "-W", "30", "10.1.0.5"))

    @levels.exhaustive("the other one of its kind stays")
    def test_nics_changed_while_it_was_off(self) -> None:
        machine = self.deployed(Machine(nics=(0,), context=addressed("10.1.0.5")))
        self.ok("cancel", machine, lcm=POWEROFF)
        self.ok("deploy", machine.changed(nics=(1,)), lcm=RESUME)
        self.assertEqual({"eth1": "oi-1-1"}, self.engine.container("one-1").interfaces)
        self.assertNotIn("one-1-0", self.ports())


    def attached(self, machine: Machine) -> object:
        return self.ports()

    def assert_limited(self, machine: Machine, memory: int) -> None:
        config = self.inspect(machine)["HostConfig"]
        self.assertEqual((memory, 50000), (config["Memory"], config["CpuQuota"]))


class DisksTest(OnedockCase):
    def test_volatile_disks_at_the_start_and_while_it_runs(self) -> None:
        machine = Machine(disks=ROOT + disk(2))
        self.node.give_file_system(machine, 2)
        self.deployed(machine)
        self.shell(machine, "echo two > /media/2/file")
        self.assertIn("ext", self.shell(machine, "grep ' /media/2 ' /proc/mounts"))
        more = machine.changed(disks=ROOT + disk(2) + disk(3, MARK))
        self.node.give_file_system(machine, 3)
        for _ in range(2):
            self.ok("attach_disk", more, *PLACE, "message")
        self.shell(machine, "echo three > /media/3/file")
        self.assertEqual("", self.shell(machine, "mkdir /media/4 2>/dev/null && echo made"))
        before = self.kib(machine)
        if may_grow():
            self.ok("resize_disk", more, "3", "64", "message", "node1")
            self.assertGreater(self.kib(machine), 40_000)
        else:
            self.refused("CAP_SYS_RESOURCE", "resize_disk", more, "3", "64", "message", "node1")
            self.assertEqual((before, 8 << 20), (self.kib(machine), self.file(machine, "disk.3").stat().st_size))
        self.refused("cannot become smaller", "resize_disk", more, "3", "4", "message", "node1")
        self.ok("reset", machine.changed(disks=ROOT + disk(2) + disk(3)))
        self.assertEqual("two\nthree\n", self.shell(machine, "cat /media/2/file /media/3/file"))
        for _ in range(2):
            self.ok("detach_disk", more, *PLACE)
        self.assertIn("No such file", self.shell(machine, "cat /media/3/file"))
        self.assertEqual("two\n", self.shell(machine, "cat /media/2/file"))

    def kib(self, machine: Machine) -> int:
        return int(self.shell(machine, "df -k /media/3 | tail -1 | awk '{print $2}'"))

    def test_a_disk_in_use_stays(self) -> None:
        machine = Machine(disks=ROOT + disk(3))
        self.node.give_file_system(machine, 3)
        self.deployed(machine)
        api = self.node.docker.daemon.api()
        process = api.exec_create("one-1", ["sh", "-c", "cd /media/3; echo there > file; exec sleep 1000"])
        api.exec_start(process, detach=True)
        self.printed_inside(machine)
        marked = machine.changed(disks=ROOT + disk(3, MARK))
        self.refused("is in use", "detach_disk", marked, *PLACE)
        self.assertEqual("there\n", self.shell(machine, "cat /media/3/file"))
        self.shell(machine, "kill $(pidof sleep)")
        self.ok("reset", machine)
        self.ok("detach_disk", marked, *PLACE)

    def printed_inside(self, machine: Machine) -> None:
        await_that(lambda: "there" in self.shell(machine, "cat /media/3/file"), "the process works on the disk")

    @levels.exhaustive("the other one of its kind stays")
    def test_a_disk_that_is_read_only_or_none(self) -> None:
        machine = Machine(disks=ROOT + disk(2, "<READONLY>YES</READONLY>", "FILE"))
        self.node.give_file_system(machine, 2)
        self.deployed(machine)
        self.assertIn("Read-only", self.shell(machine, "echo x > /media/2/file"))
        self.ok("cancel", machine, lcm=CLEANUP)
        (self.node.directory(machine) / "disk.2").write_bytes(bytes(1 << 20))
        self.refused("no file system", "deploy", machine, lcm=BOOT)
        (self.node.directory(machine) / "disk.2").unlink()
        self.refused("is not there", "deploy", machine, lcm=BOOT)
        self.nothing_is_left()
