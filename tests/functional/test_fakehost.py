# SPDX-License-Identifier: Apache-2.0
"""The emulated host itself: it reacts as the kernel does, the real LXD can give its devices, and nothing is left of it.

Runs under tools/fakehost with the small host.
"""

import dataclasses
import errno
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import fixtures
import testtools

from containerhost import vendors
from containerhost.vendors.base import Use
from containerhost.vendors.nvidia import nvml
from tests.fakehost.control import FakeHostControl
from tests.fakehost.nvml import HostNvml
from tests.functional.containerhost.base import LxdTestCase

TOOL = str(pathlib.Path(__file__).parents[2] / "tools" / "fakehost")
PCI = pathlib.Path("/sys/bus/pci")
GPUS = ("0000:3b:00.0", "0000:af:00.0")
PF, VFS = "0000:5e:00.0", ("0000:5e:00.1", "0000:d8:00.1")
TIMEOUT = 10  # seconds

# On other buses than the small host, which it runs on.
INNER = """
name: inner
nodes: [{cores: 1, memory: 1GiB}]
gpus: [{address: "0000:c1:00.0", vendor: amd, product: "738c", model: Inner GPU, numa_node: 0}]
cards: [{address: "0000:c2:00.0", kind: roce, netdev: inner, numa_node: 0, total_vfs: 2, enabled_vfs: 1}]
"""


def run(*command: str, status: int = 0) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != status:
        raise AssertionError(f"{command} ended with {done.returncode}, not {status}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"after {TIMEOUT} s still not: {what}")
        time.sleep(0.02)


def write(path: str | pathlib.Path, text: str) -> None:
    """One write, as a driver's attribute wants it."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def netdevs(address: str) -> list[str]:
    directory = PCI / "devices" / address / "net"
    return sorted(os.listdir(directory)) if directory.exists() else []


class TestSysfs(testtools.TestCase):
    """Attributes answer a write when it is done, and refuse with the kernel's numbers."""

    def setUp(self):
        super().setUp()
        self.host = FakeHostControl.from_environment()
        self.addCleanup(self.reset)

    def reset(self) -> None:
        self.host.set_num_vfs(PF, 0)
        self.host.set_num_vfs(PF, 2)

    def refused(self, number: int, path: pathlib.Path, text: str) -> None:
        self.assertEqual(number, self.assertRaises(OSError, write, path, text).errno)

    def test_numbers_of_vfs(self):
        numvfs = PCI / "devices" / PF / "sriov_numvfs"
        self.refused(errno.EBUSY, numvfs, "4")
        self.refused(errno.ERANGE, numvfs, "5")
        self.refused(errno.EINVAL, numvfs, "many")
        write(numvfs, "0")
        self.assertEqual("0\n", numvfs.read_text())
        self.assertEqual([], list(PCI.glob(f"devices/{PF[:-1]}[1-9]")))
        self.assertNotIn("ibs1v0", os.listdir("/sys/class/net"))
        write(numvfs, "4")
        self.assertEqual(4, len(list(PCI.glob(f"devices/{PF}/virtfn*/net/ibs1v*/address"))))

    def test_guids_show_when_the_driver_binds_again(self):
        guid = pathlib.Path("/sys/class/infiniband/mlx5_1/node_guid")
        before = guid.read_text()
        run(
            "ip",
            "link",
            "set",
            "dev",
            "ibs1",
            "vf",
            "0",
            "node_guid",
            "02:00:00:00:00:00:00:01",
            "port_guid",
            "02:00:00:00:00:00:00:02",
        )
        self.assertEqual(before, guid.read_text())
        self.assertIn("NODE_GUID 02:00:00:00:00:00:00:01", run("ip", "link", "show", "ibs1"))
        write(PCI / "drivers/mlx5_core/unbind", VFS[0])
        self.assertEqual([], netdevs(VFS[0]))
        self.refused(errno.ENODEV, PCI / "drivers/mlx5_core/unbind", VFS[0])
        write(PCI / "drivers_probe", VFS[0])
        self.assertEqual("0200:0000:0000:0001\n", guid.read_text())
        address = pathlib.Path("/sys/class/net/ibs1v0/address").read_text()
        self.assertTrue(address.endswith("02:00:00:00:00:00:00:02\n"), address)

    def test_ip_tells_the_vfs_as_json(self):
        (link,) = json.loads(run("ip", "-j", "link", "show", "ibs1"))
        self.assertEqual(
            ["b8:ce:f6:03:5e:00:00:02", "b8:ce:f6:03:5e:00:00:04"], [vf["node guid"] for vf in link["vfinfo_list"]]
        )
        self.assertEqual(pathlib.Path("/sys/class/net/ibs1/address").read_text().strip(), link["address"])

    def test_ip_refuses_a_vf_that_is_not_there(self):
        for interface, number in (("lo", "0"), ("ibs1", "2")):
            told = run("ip", "link", "set", interface, "vf", number, "mac", "02:00:00:00:00:01", status=2)
            self.assertEqual(f"RTNETLINK answers: Invalid argument\n{interface} has no VF {number}\n", told)

    def test_an_interface_is_followed_wherever_it_goes(self):
        run("ip", "link", "set", "ibs1v0", "name", "renamed")
        eventually(lambda: netdevs(VFS[0]) == ["renamed"], "renamed")
        self.assertEqual(VFS[0], pathlib.Path("/sys/class/net/renamed/device").resolve().name)
        self.assertEqual("renamed", self.host.move_abroad(VFS[0]))
        self.assertEqual([], netdevs(VFS[0]))
        self.host.bring_home(VFS[0])
        self.assertEqual(["renamed"], netdevs(VFS[0]))

    def test_an_interface_survives_its_namespace_under_the_name_it_had_there(self):
        here = pathlib.Path("/proc/self/ns/net").readlink()
        for wanted, expected in (("inside", "inside"), ("ibs2", "dev0")):
            name = netdevs(VFS[0])[0]
            holder = subprocess.Popen(["unshare", "--net", "sleep", "60"])
            self.addCleanup(holder.wait)
            namespace = pathlib.Path(f"/proc/{holder.pid}/ns/net")
            eventually(lambda path=namespace: path.readlink() != here, "in a namespace of its own")
            run("ip", "link", "set", name, "netns", str(holder.pid))
            run("nsenter", f"--net={namespace}", "ip", "link", "set", name, "name", wanted)
            time.sleep(0.5)  # the name is looked up five times a second
            holder.kill()
            eventually(lambda name=expected: netdevs(VFS[0]) == [name], f"back as {expected}")

    def test_resets_are_counted(self):
        before = self.host.resets().count(VFS[1])
        write(PCI / "devices" / VFS[1] / "reset", "1")
        self.assertEqual(before + 1, self.host.resets().count(VFS[1]))

    def test_a_link_can_be_down(self):
        carrier = PCI / "devices" / PF / "net/ibs1/carrier"
        state = PCI / "devices" / PF / "infiniband/mlx5_0/ports/1/state"
        self.host.set_link(PF, False)
        self.assertEqual(("0\n", "1: DOWN\n"), (carrier.read_text(), state.read_text()))
        self.host.set_link(PF, True)
        self.assertEqual(("1\n", "4: ACTIVE\n"), (carrier.read_text(), state.read_text()))

    def test_a_pulled_card_takes_its_vfs_with_it(self):
        self.host.remove(PF)
        self.assertEqual([], [name for name in os.listdir("/sys/class/net") if name.startswith("ibs1")])
        self.assertFalse((PCI / "devices" / VFS[0]).exists())
        self.host.restore(PF)
        self.assertEqual(["ibs1v0"], netdevs(VFS[0]))

    def test_two_sockets_over_the_machines_own_cpus(self):
        told = run("lscpu")
        self.assertEqual("2", re.search(r"NUMA node\(s\):\s+(\d+)", told)[1])
        self.assertEqual("2", re.search(r"Socket\(s\):\s+(\d+)", told)[1])
        nodes = sorted(pathlib.Path("/sys/devices/system/node").glob("node[0-9]*"))
        self.assertEqual(2, len(nodes))
        cpus = {int(cpu.name[3:]) for node in nodes for cpu in node.glob("cpu[0-9]*")}
        self.assertEqual(set(range(os.cpu_count())), cpus)

    def test_nodes_cannot_be_opened_by_mistake(self):
        error = self.assertRaises(OSError, os.open, "/dev/nvidia0", os.O_RDWR)
        self.assertEqual(errno.ENXIO, error.errno)


class TestNvml(testtools.TestCase):
    """NVIDIA's management library reports the GPUs that are there, and the load that a test sets."""

    def test_use_follows_the_load_and_a_fallen_gpu_has_none(self):
        host = FakeHostControl.from_environment()
        self.useFixture(HostNvml(host))
        idle, (gpu, other) = Use(0, 0, 40 << 30, 50.0, 0), GPUS
        self.assertEqual({gpu: idle, other: dataclasses.replace(idle, number=1)}, vendors.usage())
        host.set_load(gpu, 50)
        self.addCleanup(host.set_load, gpu, 0)
        self.assertEqual(Use(50, 25, 20 << 30, 225.0, 0), vendors.usage()[gpu])
        host.set_fallen(gpu)
        self.addCleanup(host.set_fallen, gpu, False)
        self.assertEqual({other: idle}, vendors.usage())
        self.assertEqual("GPU is lost", nvml.query()[gpu].state.lost)

    def test_load_of_a_network_card_is_refused(self):
        host = FakeHostControl.from_environment()
        self.assertEqual(errno.EINVAL, self.assertRaises(OSError, host.set_load, PF, 50).errno)


class TestLxd(LxdTestCase):
    """Two containers, each with the GPU and a VF of one socket."""

    def lxc(self, *arguments: str) -> str:
        client = shutil.which("lxc") or shutil.which("incus") or "lxc"
        return subprocess.run(
            [client, *arguments],
            env=self.lxd.daemon.environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
        ).stdout

    def with_devices(self, number: int) -> str:
        name = f"fake{number}"
        self.engine.create(self.spec(name))
        self.lxc("config", "set", name, f"limits.cpu={number}-{number}")
        self.lxc("config", "device", "add", name, "gpu", "gpu", f"pci={GPUS[number]}", "mode=0666")
        parent = f"parent=ibs{number + 1}v0"
        self.lxc("config", "device", "add", name, "ib", "nic", "nictype=physical", parent, "name=ib0")
        self.engine.start(name)
        self.assertEqual((0, ""), self.inside(name, "ip", "address", "add", f"10.77.0.{number + 1}/24", "dev", "ib0"))
        self.assertEqual((0, ""), self.inside(name, "ip", "link", "set", "ib0", "up"))
        return name

    def test_gpu_and_vf_in_containers(self):
        first, second = self.with_devices(0), self.with_devices(1)
        for number, name in enumerate((first, second)):
            self.assertEqual([], netdevs(VFS[number]))
            self.assertEqual("32\n", self.inside(name, "cat", "/sys/class/net/ib0/type")[1])
            found = self.inside(name, "sh", "-c", "ls /dev/nvidia[0-9]* /dev/dri")[1].split()
            self.assertEqual([f"/dev/nvidia{number}", "/dev/dri:", f"card{number}", f"renderD{128 + number}"], found)
            self.assertIn(f"Cpus_allowed_list:\t{number}\n", self.inside(name, "cat", "/proc/self/status")[1])
            self.assertIn("No such device or address", self.inside(name, "cat", f"/dev/nvidia{number}")[1])
            other = self.inside(name, "mknod", "/tmp/other", "c", "195", str(1 - number))
            self.assertIn("Operation not permitted", other[1])
        status, output = self.inside(first, "ping", "-c", "3", "-W", "2", "10.77.0.2")
        self.assertEqual(0, status, output)
        self.assertIn("3 packets received", output)
        for name in (first, second):
            self.engine.stop(name, timeout=TIMEOUT, force=True)
        for number, address in enumerate(VFS):
            eventually(lambda a=address, n=number: netdevs(a) == [f"ibs{n + 1}v0"], f"{address} is back")

    def test_lxd_sees_the_hardware(self):
        told = json.loads(self.lxc("query", "/1.0/resources"))
        self.assertEqual(sorted(GPUS), sorted(card["pci_address"] for card in told["gpu"]["cards"]))
        self.assertEqual([0, 1], sorted(card["numa_node"] for card in told["gpu"]["cards"]))
        self.assertEqual(2, len(told["cpu"]["sockets"]))
        self.assertEqual(2, len(told["memory"]["nodes"]))
        cores = [core for socket in told["cpu"]["sockets"] for core in socket["cores"]]
        self.assertEqual({0, 1}, {thread["numa_node"] for core in cores for thread in core["threads"]})
        cards = {card["pci_address"]: card for card in told["network"]["cards"]}
        self.assertEqual(2, cards[PF]["sriov"]["current_vfs"])


class TestTool(testtools.TestCase):
    """The command line, on a host within this one."""

    def setUp(self):
        super().setUp()
        self.directory = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.description = self.directory / "inner.yaml"
        self.description.write_text(INNER)
        self.before = self.traces()

    def traces(self) -> set[str]:
        """Return what a host that has not cleaned up would leave: mounts, control groups, interfaces, processes."""
        mounts = {line.split()[4] for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()}
        groups = {str(path) for path in pathlib.Path("/sys/fs/cgroup").glob("**/fakehost-*")}
        processes = {
            f"{path} {path.read_bytes()!r}"
            for path in pathlib.Path("/proc").glob("[0-9]*/cmdline")
            if b"4711" in path.read_bytes()
        }
        return mounts | groups | processes | set(os.listdir("/sys/class/net")) | set(os.listdir("/dev"))

    def tool(self, *arguments: str, status: int = 0) -> str:
        return run(sys.executable, TOOL, *arguments, status=status)

    def inner(self, *command: str, status: int = 0) -> str:
        return self.tool("--host", str(self.description), "--", *command, status=status)

    def test_a_command_sees_the_host_and_gives_its_status(self):
        look = "ls /sys/bus/pci/devices /dev/dri; cat /sys/class/net/innerv0/device/vendor; exit 7"
        output = self.inner("sh", "-c", look, status=7)
        self.assertEqual(
            [
                "/dev/dri:",
                "by-path",
                "card0",
                "renderD128",
                "/sys/bus/pci/devices:",
                "0000:c1:00.0",
                "0000:c2:00.0",
                "0000:c2:00.2",
                "0x15b3",
            ],
            output.split(),
        )
        self.assertEqual(self.before, self.traces())

    def test_each_host_has_records_of_its_own(self):
        for directory in ("/run/containerhost", "/run/onedriver", "/var/lib/containerhost"):
            file = pathlib.Path(directory, "of-the-outer-host")
            file.touch()
            self.addCleanup(file.unlink)
            self.inner("test", "!", "-e", str(file))
        self.assertEqual(self.before, self.traces())

    def test_statuses(self):
        self.inner("sh", "-c", "kill -9 $$", status=137)
        self.assertIn("cannot run /nonexistent", self.inner("/nonexistent", status=127))
        self.assertIn("broken, cards, dgx, fabrics, mixed, small",
                      self.tool("--host", "nope", "--", "true", status=125))
        self.assertEqual(self.before, self.traces())

    def test_host_with_the_addresses_of_the_outer_one(self):
        self.assertIn("0000:3b:00.0", self.tool("--host", "small", "--", "ls", "/sys/bus/pci/devices").split())
        self.assertEqual(self.before, self.traces())

    def test_what_is_left_running_ends_with_the_command(self):
        self.inner("sh", "-c", "setsid sleep 4711 & setsid sh -c 'trap \"\" TERM; sleep 4711' & exit 0")
        self.assertEqual(self.before, self.traces())

    def started(self) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            TOOL,
            "--host",
            str(self.description),
            "--",
            "sh",
            "-c",
            "trap 'exit 9' TERM; echo up; sleep 4711 & wait",
        ]
        tool = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.addCleanup(tool.stdout.close)
        self.assertEqual("up\n", tool.stdout.readline())
        return tool

    def test_a_signal_ends_the_command_first(self):
        tool = self.started()
        tool.send_signal(signal.SIGTERM)
        self.assertEqual(9, tool.wait(TIMEOUT))
        self.assertEqual(self.before, self.traces())

    def test_killing_the_tool_ends_everything(self):
        tool = self.started()
        tool.kill()
        tool.wait(TIMEOUT)
        eventually(lambda: not any("4711" in trace for trace in self.traces()), "all processes gone")
        self.inner("true")  # sweeps the remaining control groups
        self.assertEqual(self.before, self.traces())

    def test_a_named_host_is_joined_and_stopped(self):
        self.tool("--host", str(self.description), "--name", "inner", "--detach")
        self.addCleanup(subprocess.run, [sys.executable, TOOL, "--stop", "inner"], capture_output=True, check=False)
        self.assertIn("runs already", self.tool("--name", "inner", "--", "true", status=125))
        self.tool("--join", "inner", "--", "ip", "link", "set", "innerv0", "name", "changed")
        joined = self.tool("--join", "inner", "--", "sh", "-c", "pwd; ls /sys/class/net; exit 3", status=3)
        self.assertEqual([os.getcwd(), "changed", "inner", "lo"], joined.split())
        self.tool("--join", "inner", "--", "sh", "-c", "setsid sleep 4711 >/dev/null 2>&1 &")
        self.tool("--stop", "inner")
        self.assertIn("no emulated host named inner runs", self.tool("--stop", "inner", status=125))
        self.assertEqual(self.before, self.traces())
