# SPDX-License-Identifier: Apache-2.0
"""Test what every container engine must do alike (:mod:`containerhost.engines`), on a real daemon on an emulated host.

An engine passes when a test case mixes in :class:`EngineConformance` beside its own base class, which brings what
:class:`~tests.conformance.engine.frame.EngineFrame` asks for. After every test the host is as it was before: no
interface, device, loop device, mount or record is left of a container.

Import the module, not its classes: each would else be a test of the importing module.
"""

import dataclasses
import functools
import os
import shutil
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import fixtures
from testtools.matchers import Contains

from containerhost import errors
from containerhost.allocation.choice import Request
from containerhost.devices.model import CharNode, Device
from containerhost.devices.scan import scan
from containerhost.engines import KEPT, Containers, Executed, InterfaceMetrics, Metrics, Status
from containerhost.grants import GpuGrant, Grant
from containerhost.linux.poll import wait_until
from containerhost.spec import Cpu, Memory, Mount, Nic, Part
from containerhost.vendors import own
from containerhost.vendors.base import GpuVendor
from tests.conformance.engine import frame, keeping, killing
from tests.conformance.engine.frame import ENXIO, EPERM, PYTHON, TIMEOUT, MiB
from tests.waiting import await_that

NEAR, FAR = "10.9.1.1", "10.9.1.2"  # the host's end, the container's
# Writes to the memory of a child process and reads it back; $1 is the user that the parent becomes before. Nothing of
# it is traced: that is how Open MPI and UCX copy large messages between the processes of one host.
READ_CHILD = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))
def call(name, ours):
    vectors = [Vector(ctypes.addressof(text), 4) for text in (ours, theirs)]
    done = getattr(libc, name)(child, ctypes.byref(vectors[0]), 1, ctypes.byref(vectors[1]), 1, 0)
    return os.strerror(ctypes.get_errno()) if done < 0 else ours.raw[:4].decode()
theirs = ctypes.create_string_buffer(b"kept")
end, ours = os.pipe()
child = os.fork()
if not child:
    os.close(ours)
    os.read(end, 1)  # until the parent has ended
    os._exit(0)
os.setuid(int(sys.argv[1]))
print(call("process_vm_writev", ctypes.create_string_buffer(b"sent")),
      call("process_vm_readv", ctypes.create_string_buffer(b"none")), sep=", ")
"""


class Life(frame.DeviceFrame):
    """:cvar last_words: what the first program prints when it is asked to end
    """

    last_words: ClassVar[bytes]

    def test_from_nothing_to_running_and_back(self):
        self.engine.create(self.spec())
        self.assertEqual(Status.STOPPED, self.engine.container("c1").status)
        self.assertIsNone(self.engine.container("c1").last_used)
        self.assertEqual(b"", self.engine.console_log("c1"))
        self.engine.start("c1")
        (state,) = self.engine.containers()
        self.assertEqual(("c1", Status.RUNNING, {self.label: "of-c1"}), (state.name, state.status, dict(state.labels)))
        self.assertIsNotNone(self.engine.container("c1").last_used)
        self.engine.delete("c1")
        self.assertEqual((), self.engine.containers())
        self.assertEqual([], self.left())

    def test_power_calls_may_be_repeated(self):
        self.running()
        for action, status in (
            (lambda: self.engine.start("c1"), Status.RUNNING),
            (lambda: self.engine.freeze("c1"), Status.FROZEN),
            (lambda: self.engine.unfreeze("c1"), Status.RUNNING),
            (lambda: self.engine.stop("c1", timeout=TIMEOUT, force=True), Status.STOPPED),
            (lambda: self.engine.start("c1"), Status.RUNNING),
        ):
            action()
            action()
            self.assertEqual(status, self.engine.container("c1").status)

    def test_soft_stop_asks_the_first_program(self):
        for prepare in (lambda: None, lambda: self.engine.freeze("c1")):
            self.running()
            self.up()
            prepare()
            self.engine.stop("c1", timeout=TIMEOUT)
            self.assertEqual(Status.STOPPED, self.engine.container("c1").status)
            await_that(lambda: self.last_words in self.engine.console_log("c1"),  # liblxc writes it after its stop hook
                       lambda: f"{self.last_words!r} in {self.engine.console_log('c1')!r}")
            self.engine.delete("c1")

    def test_soft_stop_of_one_that_does_not_answer_says_so_in_time(self):
        self.running()
        self.up()
        os.kill(self.engine.pid("c1"), signal.SIGSTOP)
        self.addCleanup(self.engine.stop, "c1", timeout=TIMEOUT, force=True)
        error = self.assertRaises(errors.EngineTimeout, self.engine.stop, "c1", timeout=1)
        self.assertIn("within 1 s", str(error))
        self.assertEqual(Status.RUNNING, self.engine.container("c1").status)

    def test_restart_gives_a_new_first_process(self):
        self.running()
        for force in (False, True):
            self.up()
            before = self.engine.metrics("c1").pid
            self.engine.restart("c1", timeout=TIMEOUT, force=force)
            self.assertNotIn(self.engine.metrics("c1").pid, (before, None))

    def test_delete_works_from_every_state(self):
        def frozen() -> None:
            self.running()
            self.engine.freeze("c1")

        for prepare in (lambda: None, lambda: self.engine.create(self.spec()), self.running, frozen):
            prepare()
            for _ in range(2):
                self.engine.delete("c1")
            self.assertFalse(self.engine.exists("c1"))
        self.assertEqual([], self.left())

    def test_two_deletions_at_once_both_succeed(self):
        self.running()
        failures = []

        def delete() -> None:
            try:
                self.engine.delete("c1")
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=delete) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(([], False), (failures, self.engine.exists("c1")))

    def test_what_cannot_be_is_told_apart_and_changes_nothing(self):
        self.engine.create(self.spec())
        before = self.engine.container("c1")
        for wanted, action in (
            (errors.EngineNotFound, lambda: self.engine.start("c2")),
            (errors.EngineNotFound, lambda: self.engine.container("c2")),
            (errors.EngineNotFound, lambda: self.engine.console_log("c2")),
            (errors.EngineNotFound, lambda: self.engine.metrics("c2")),
            (errors.EngineNotFound, lambda: self.engine.create(self.spec("c2", image="no-such-image"))),
            (errors.EngineConflict, lambda: self.engine.create(self.spec())),
            (errors.EngineError, lambda: self.engine.create(self.spec("not/a name"))),
            (errors.EngineConflict, lambda: self.engine.verify("c1", ())),
            (errors.EngineError, lambda: self.engine.execute("c1", ["true"], b"", timeout=1)),
        ):
            self.assertRaises(wanted, action)
        self.assertEqual([("c1", before)], [(state.name, self.engine.container("c1")) for state in
                                            self.engine.containers()])

    def test_name_of_a_running_container_is_taken_until_it_is_deleted(self):
        self.running()
        pid = self.engine.pid("c1")
        self.assertRaises(errors.EngineConflict, self.engine.create, self.spec())
        self.assertEqual((Status.RUNNING, pid), (self.engine.container("c1").status, self.engine.pid("c1")))
        for _ in range(2):
            self.engine.delete("c1")
            self.engine.create(self.spec())

    def test_renamed_container_leaves_its_name_free(self):
        self.engine.create(self.spec())
        self.engine.rename("c1", "old")
        self.running()
        self.engine.start("old")
        self.assertEqual({"c1", "old"}, {state.name for state in self.engine.containers()})

    def test_containers_run_on_while_the_daemon_is_restarted_or_killed(self):
        grants = self.acquired("c1", self.requests())
        self.up()
        pid = self.engine.pid("c1")
        for end in (self.daemon.stop, self.daemon.kill):
            end()
            try:
                self.assertRaises(errors.EngineUnavailable, self.engine.containers)
                self.assertRaises(errors.EngineUnavailable, self.engine.delete, "c1")
            finally:
                self.daemon.start()
            self.assertEqual((Status.RUNNING, pid), (self.engine.container("c1").status, self.another().pid("c1")))
            self.engine.verify("c1", grants)
            self.assertEqual((0, "on\n"), self.inside("c1", "echo", "on"))
        self.engine.stop("c1", timeout=TIMEOUT)
        self.engine.start("c1")
        self.engine.verify("c1", grants)

    def test_server_describes_itself(self):
        server = self.engine.server()
        kernel = os.uname()
        self.assertEqual((kernel.machine, kernel.release), (server.architectures[0], server.kernel))
        self.assertRegex(server.version, r"[0-9]+\.[0-9]+")


class Limits(frame.DeviceFrame):
    def test_limits_hold_inside(self):
        self.running(cpu=Cpu(1, cores=frozenset({0}), share=50), limits={"nofile": "1024"})
        self.assertRegex(self.inside("c1", "cat", "/proc/1/status")[1], r"Cpus_allowed_list:\s0\n")
        self.assertRegex(self.inside("c1", "cat", "/proc/1/limits")[1], r"Max open files\s+1024\s+1024")

    def test_fork_bomb_ends_at_the_limit_of_processes(self):
        """Use a bomb that could not take the host with it either: 200 processes, which end by themselves."""
        self.running(processes=60)
        self.running("c2")
        bomb = "i=0; while [ $i -lt 200 ]; do sleep 120 > /dev/null 2>&1 < /dev/null & i=$((i+1)); done; echo all"
        done = self.engine.execute("c1", ["sh", "-c", bomb], b"", timeout=TIMEOUT)
        self.assertNotEqual((0, b"all\n"), (done.status, done.stdout))
        self.assertLessEqual(self.engine.metrics("c1").processes, 60)
        self.assertEqual(0, self.engine.execute("c2", ["sh", "-c", "exit 0"], b"", timeout=TIMEOUT).status)
        self.engine.delete("c1")
        self.assertFalse(self.engine.exists("c1"))

    def test_memory_is_not_more_than_asked(self):
        self.running(memory=Memory(32 * MiB))
        status, output = self.inside("c1", "sh", "-c",
                                     "x=$(head -c 67108864 /dev/zero | tr '\\0' a); echo survived")
        self.assertNotIn("survived", output)
        self.assertNotEqual(0, status)
        self.assertTrue(self.engine.metrics("c1").memory_peak <= 32 * MiB)

    def test_mounts_arrive_read_only(self):
        source = self.directory() / "drive"
        source.mkdir(exist_ok=True)
        (source / "meta").write_text("hello\n")
        self.running(mounts=(Mount("context", str(source), "/context"),))
        self.assertEqual((0, "hello\n"), self.inside("c1", "cat", "/context/meta"))
        self.assertNotEqual(0, self.inside("c1", "touch", "/context/more")[0])


    def test_processes_of_one_user_copy_each_others_memory_and_no_others(self):
        self.running(mounts=PYTHON)
        for user, expected in (("0", "sent, sent"), ("65534", f"{EPERM}, {EPERM}")):
            self.assertEqual((0, f"{expected}\n"), self.inside("c1", "/usr/bin/python3", "-c", READ_CHILD, user))


class Commands(frame.DeviceFrame):
    def test_commands_with_standard_input(self):
        self.running()
        for command, stdin, expected in (
            (["cat"], b"hello\0\n", Executed(0, b"hello\0\n")),
            (["cat"], b"", Executed(0, b"")),
            (["sh", "-c", "echo out; echo err >&2; exit 3"], b"", Executed(3, b"out\n", b"err\n")),
            (["sh", "-c", "kill -9 $$"], b"", Executed(137, b"")),
        ):
            with self.subTest(command):
                self.assertEqual(expected, self.engine.execute("c1", command, stdin, timeout=TIMEOUT))
        for program, status in (("no-such-program", 127), ("/etc", 126)):
            self.assertEqual(status, self.engine.execute("c1", [program], b"", timeout=TIMEOUT).status)

    def test_large_input_and_output_are_read_to_their_end(self):
        """It writes before it has read all."""
        self.running()
        done = self.engine.execute("c1", ["sh", "-c", "cat; yes | head -c 1000000 >&2"], bytes(4 * MiB),
                                   timeout=TIMEOUT)
        self.assertEqual((0, KEPT, KEPT), (done.status, len(done.stdout), len(done.stderr)))

    def test_command_that_does_not_end_is_killed(self):
        self.running()
        for script, stdin in (("exec sleep 599", b""), ("exec > /dev/null 2>&1; exec sleep 599", b""),
                              ("exec sleep 599", bytes(4 * MiB))):
            self.assertRaises(errors.EngineTimeout, self.engine.execute, "c1", ["sh", "-c", script], stdin, timeout=3)
            self._await_killed()

    def test_command_is_killed_by_another_thread(self):
        self.running()
        command = self.engine.command("c1", ["sleep", "599"])
        self.addCleanup(command.close)
        killer = threading.Timer(1, command.kill)
        killer.start()
        began = time.monotonic()
        self.assertNotEqual(0, command.finish(b"", TIMEOUT).status)
        self.assertLess(time.monotonic() - began, TIMEOUT)
        killer.join()
        command.kill()
        self._await_killed()

    def _await_killed(self):
        await_that(lambda: "sleep 599" not in self.inside("c1", "ps")[1], "the command is killed")


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
            self.engine.restart("c1", timeout=TIMEOUT, force=force)
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


class Devices(frame.DeviceFrame):
    def someones(self, gpu: Device) -> None:
        """Let a container ``someone``, not of this project's making, have the GPU."""
        raise NotImplementedError

    def test_held_names_the_container_of_each_device(self):
        grants = self.acquired("c1", self.requests())
        self.assertEqual({grant.device.id: "c1" for grant in grants}, dict(self.engine.held(scan().devices)))
        self.engine.delete("c1")
        self.assertEqual({}, dict(self.engine.held(scan().devices)))

    def test_attach_and_detach_may_be_repeated(self):
        gpu, vf = self.ready()
        for grant in (gpu, vf):
            for _ in range(2):
                self.engine.attach("c1", grant)
                self.engine.verify("c1", [grant])
            for _ in range(2):
                self.engine.detach("c1", grant)
                self.engine.verify("c1", [])

    def test_vendor_with_nodes_in_a_directory_of_its_own(self):
        directory = Path("/dev/testaccel")
        directory.mkdir()
        self.addCleanup(shutil.rmtree, directory)
        numbers = {"x0": (1, 7), "x1": (1, 5)}
        for name, number in numbers.items():
            os.mknod(directory / name, stat.S_IFCHR | 0o600, os.makedev(*number))
        other = type("Other", (GpuVendor,), {"name": "other", "nodes": ("testaccel/x*",)})
        self.useFixture(fixtures.MonkeyPatch("containerhost.vendors.load", lambda: (*own(), other)))
        grants = []
        for name, number in numbers.items():
            card = dataclasses.replace(self.gpus[0], id=f"0000:{name}:00.0", plugin="other", vendor_id="1234")
            grants.append(Grant(card, (CharNode(f"/dev/testaccel/{name}", *number),),
                                gpu=GpuGrant(card.address, None, "1234")))
        self.running(parts=grants[:1])
        self.engine.verify("c1", grants[:1])
        self.engine.attach("c1", grants[1])
        self.engine.verify("c1", grants)
        error = self.assertRaises(errors.NotAsGranted, self.engine.verify, "c1", grants[1:])
        self.assertIn("/dev/testaccel/x0", str(error))
        for grant in grants:
            self.engine.detach("c1", grant)
        self.engine.verify("c1", ())

    def nodes(self, name: str) -> set[str]:
        return set(self.inside(name, "find", "/dev", "-type", "c")[1].split())

    def test_one_gpu_and_one_vf_and_no_others(self):
        self.running("plain")
        grants = self.acquired("c1", self.requests(0))
        self.engine.verify("c1", grants)
        granted = {node.path for grant in grants for node in grant.nodes}
        self.assertEqual(granted, self.nodes("c1") - self.nodes("plain"))
        _, names = self.inside("c1", "sh", "-c", "cd /dev && find nvidia* dri infiniband -type c | sort")
        uverbs = next(node.path for node in self.vfs[0].nodes if "uverbs" in node.path).rpartition("/")[2]
        self.assertEqual(["dri/card0", "dri/renderD128", "infiniband/rdma_cm", f"infiniband/{uverbs}", "nvidia-modeset",
                          "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidiactl"], names.split())
        self.assertThat(self.inside("c1", "cat", "/sys/class/net/ib0/type")[1], Contains("32"))
        # A node that is there and allowed leads to a driver that is not; one that is made up is refused.
        self.assertThat(self.inside("c1", "cat", "/dev/nvidia0")[1], Contains(ENXIO))
        self.assertThat(self.inside("c1", "sh", "-c", "mknod /nvidia1 c 195 1 && cat /nvidia1")[1], Contains(EPERM))

    def test_two_containers_reach_each_other_over_their_vfs(self):
        for number, name in enumerate(("c1", "c2")):
            self.acquired(name, self.requests(number))
            pid = str(self.engine.metrics(name).pid)
            for words in (["address", "add", f"10.9.0.{number + 1}/24", "dev", "ib0"], ["link", "set", "ib0", "up"]):
                subprocess.run(["nsenter", "--target", pid, "--net", "ip", *words], check=True)
        self.assertEqual(0, self.inside("c1", "ping", "-c", "1", "-W", "30", "10.9.0.2")[0])

    def test_verify_sees_too_much_and_too_little(self):
        grants = self.acquired("c1", self.requests(0))
        error = self.assertRaises(errors.NotAsGranted, self.engine.verify, "c1", grants[:1])
        self.assertThat(str(error), Contains("uverbs"))
        self.inside("c1", "sh", "-c", "umount /dev/nvidia0; rm /dev/nvidia0")
        error = self.assertRaises(errors.NotAsGranted, self.engine.verify, "c1", grants)
        self.assertThat(str(error), Contains("/dev/nvidia0 is missing"))

    def test_verify_follows_no_link_of_the_tenant(self):
        grants = self.acquired("c1", self.requests(0))
        self.inside("c1", "mv", "/dev/infiniband", "/dev/elsewhere")
        self.inside("c1", "ln", "-s", "/dev/infiniband", "/dev/infiniband")
        error = self.assertRaises(errors.NotAsGranted, self.engine.verify, "c1", grants)
        self.assertThat(str(error), Contains("rdma_cm is missing"))

    def test_every_start_gives_the_devices_again(self):
        grants = self.acquired("c1", self.requests(0))
        self.up()
        for force in (False, True):
            self.engine.restart("c1", timeout=TIMEOUT, force=force)
            self.engine.verify("c1", grants)

    def test_a_stopped_container_keeps_no_interface(self):
        self.acquired("c1", self.requests(0))
        self.engine.stop("c1", timeout=TIMEOUT, force=True)
        await_that(lambda: scan().get(self.vfs[0].id).netdev == self.vfs[0].netdev, "the interface is back")

    def test_power_off_and_on_after_the_host_named_interfaces_anew(self):
        self.acquired("c1", self.requests(0))
        self.engine.stop("c1", timeout=TIMEOUT, force=True)
        self.privileged().rename_netdev(self.vfs[0].netdev, "other0")
        # The kernel's /sys has the new name at once, the emulated one a moment later.
        self.assertTrue(wait_until(lambda: scan().get(self.vfs[0].id).netdev == "other0", TIMEOUT))
        grants = self.taken()
        self.engine.update_devices("c1", grants)
        self.engine.start("c1")
        self.engine.verify("c1", grants)

    def test_attach_and_detach_while_it_runs(self):
        gpu, vf = self.ready()
        for grant in (gpu, vf):
            self.engine.attach("c1", grant)
        self.engine.verify("c1", (gpu, vf))
        self.assertThat(self.inside("c1", "cat", "/dev/nvidia0")[1], Contains(ENXIO))
        self.engine.restart("c1", timeout=TIMEOUT, force=True)
        self.engine.verify("c1", (gpu, vf))
        self.engine.detach("c1", vf, [gpu])
        self.assertEqual((), self.allocator.release_device(vf.device.id, self.consumer(), self.engine.pid("c1")))
        self.engine.verify("c1", [gpu])
        self.engine.detach("c1", gpu, [])
        self.engine.verify("c1", [])
        self.engine.restart("c1", timeout=TIMEOUT, force=True)
        self.engine.verify("c1", [])

    def test_interface_that_the_guest_renamed_is_told_and_stays(self):
        _, grant = self.ready()
        self.engine.attach("c1", grant)

        def rename(name, new):
            pid = str(self.engine.metrics("c1").pid)
            for words in (["down"], ["name", new]):
                subprocess.run(["nsenter", "--target", pid, "--net", "ip", "link", "set", name, *words], check=True)

        rename("ib0", "mine")
        error = self.assertRaises(errors.HostActionFailed, self.engine.detach, "c1", grant)
        self.assertIn("call it ib0 again, or stop the container, then try again", str(error))
        self.assertIn("mine", self.privileged().inside(self.engine.metrics("c1").pid).netdevs)
        rename("mine", "ib0")
        self.engine.detach("c1", grant)
        self.assertNotIn("ib0", self.privileged().inside(self.engine.metrics("c1").pid).netdevs)

    def test_detach_of_one_of_two_leaves_the_other_whole(self):
        """LXD 5.0 takes nvidiactl away, or leaves it dangling, with either of two GPUs."""
        grants = self.acquired("c1", tuple(Request(gpu.id) for gpu in self.gpus[:2]))
        for gone, stays in ((0, 1), (1, 0)):
            self.engine.detach("c1", grants[gone], [grants[stays]])
            self.engine.verify("c1", [grants[stays]])
            self.engine.attach("c1", grants[gone])
            self.engine.verify("c1", grants)
        self.engine.detach("c1", grants[0], [grants[1]])
        self.engine.detach("c1", grants[1], [])
        self.engine.verify("c1", [])

    def test_hot_plugged_devices_come_back_from_every_end(self):
        for end in (lambda: self.engine.stop("c1", timeout=TIMEOUT),
                    lambda: self.engine.stop("c1", timeout=TIMEOUT, force=True),
                    lambda: self.engine.restart("c1", timeout=TIMEOUT),
                    lambda: self.engine.delete("c1")):
            for grant in self.ready():
                self.engine.attach("c1", grant)
            end()
            self.engine.delete("c1")
            self.assertEqual((), self.allocator.release(self.consumer()))
            self.all_back()

    def test_what_anothers_container_uses_is_refused(self):
        self.someones(self.gpus[0])
        error = self.assertRaises(errors.DeviceHeld, self.taken)
        self.assertThat(str(error), Contains("someone"))
        self.assertEqual({}, self.store.records())


class Crashes(Interfaces):
    """The process that drives the engine is killed at steps of a call: the same call brings it to its end, and deletion
    leaves nothing."""

    def killed(self, call: Callable[[Containers], object], undo: Callable[[], object]) -> Iterator[None]:
        """Let one process after another be killed in a call, each at a later step.

        :param undo: brings back the state before the call
        """
        total = killing.steps(lambda: call(self.another()))
        for step in killing.spread(total):
            undo()
            killing.killed_at(step, lambda: call(self.another()))
            yield

    def delete(self) -> None:
        self.engine.delete("c1")
        self.assertEqual((False, []), (self.engine.exists("c1"), self.left()))

    def test_killed_in_a_creation(self):
        spec = self.spec()
        for _ in self.killed(lambda engine: engine.create(spec), self.delete):
            self.delete()
            self.engine.create(spec)
            self.engine.start("c1")
            self.assertEqual(Status.RUNNING, self.engine.container("c1").status)

    def test_killed_between_creation_and_start(self):
        grants = self.taken()
        spec = self.spec(parts=grants)

        def drive() -> None:
            self.another().create(spec)
            os.kill(os.getpid(), signal.SIGKILL)

        self.assertTrue(killing.killed_at(None, drive))
        self.engine.start("c1")
        self.engine.verify("c1", grants)

    def test_killed_in_a_start(self):
        grants = self.taken()
        self.engine.create(self.spec(parts=grants))
        for _ in self.killed(lambda engine: engine.start("c1"),
                             lambda: self.engine.stop("c1", timeout=TIMEOUT, force=True)):
            self.engine.start("c1")
            self.engine.verify("c1", grants)

    def test_killed_in_a_deletion(self):
        spec = self.spec(parts=self.taken())

        def run() -> None:
            self.engine.create(spec)
            self.engine.start("c1")

        run()
        for _ in self.killed(lambda engine: engine.delete("c1"), run):
            self.delete()
            self.all_back()

    def test_killed_in_an_attachment_or_a_detachment(self):
        for grant in self.ready():
            attach, detach = (functools.partial(self._change, way, grant) for way in ("attach", "detach"))
            for _ in self.killed(attach, functools.partial(detach, self.engine)):
                attach(self.engine)
                self.engine.verify("c1", [grant])
            for _ in self.killed(detach, functools.partial(attach, self.engine)):
                detach(self.engine)
                self.engine.verify("c1", [])

    @staticmethod
    def _change(way: str, part: Part, engine: Containers) -> None:
        getattr(engine, way)("c1", part)

    def test_killed_in_an_attachment_of_an_interface(self):
        nic = self.made()
        self.running()
        self.up()
        for _ in self.killed(lambda engine: engine.attach("c1", nic), lambda: self.engine.detach("c1", nic)):
            self.engine.attach("c1", nic)
            self.assertIn("eth0", self.inside("c1", "ls", "/sys/class/net")[1])
        self.engine.detach("c1", nic)
        self.back()


class EngineConformance(Life, Limits, Commands, Usage, Devices, keeping.Keeping, Crashes):
    """Test what every engine must do."""
