# SPDX-License-Identifier: Apache-2.0
"""Test that what the host lacks or refuses becomes the error that callers know, with the remedy."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fixtures
import testtools

from containerhost.allocation.netfunction import NetFunction
from containerhost.devices.model import Device, Kind, Role
from containerhost.engines.docker import volumes
from containerhost.errors import HostActionFailed
from containerhost.linux.network import links
from containerhost.linux.process.processes import runs
from containerhost.linux.run import confined, detached, holding, release, run, running
from containerhost.linux.storage import idmounts
from containerhost.linux.sysfs import Host
from containerhost.privileged import Privileged
from onedock import datafiles
from onedock.transfer import node_agent, streams
from onedock.transfer.nodes import Node
from onedriver.errors import DriverError
from onedriver.node import programs
from tests.waiting import await_that

GUID = "0000:0000:0000:0001"
ADDRESS = "0000:5e:00.1"
THREADS = 64  # of qemu-img, at most
TRIED = f"""
import ctypes, threading
malloc, all_run = ctypes.CDLL(None).malloc, threading.Barrier({THREADS} + 1, timeout=20)

def run():
    malloc(ctypes.c_size_t(5000))
    all_run.wait()

for _ in range({THREADS}):
    threading.Thread(target=run, daemon=True).start()
all_run.wait()
"""


class MissingProgram(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.EnvironmentVariable("PATH", self.useFixture(fixtures.TempDir()).path))
        self.root = Privileged()

    def refused(self, kind: type[Exception], program: str, package: str, act: Callable[[], Any]) -> None:
        error = str(self.assertRaises(kind, act))
        self.assertIn(f"no program {program}", error)
        self.assertIn(package, error)

    def test_root_actions_name_program_and_package(self) -> None:
        for program, package, act in (
                ("ip", "iproute2", lambda: self.root.set_vf_guids("ib0", 0, GUID, GUID)),
                ("ip", "iproute2", lambda: self.root.set_vf_link("ib0", 0, "auto")),
                ("tc", "iproute-tc", lambda: self.root.shape("lo", 1, 1, 1))):
            self.refused(HostActionFailed, program, package, act)

    def test_rdma_of_iproute2(self) -> None:
        """`ip` is there, `rdma` is not: as on a minimal host."""
        directory = self.useFixture(fixtures.TempDir()).path
        ip = Path(directory, "ip")
        ip.write_text("#!/bin/sh\n", encoding="ascii")
        ip.chmod(0o755)
        self.useFixture(fixtures.EnvironmentVariable("PATH", directory))
        self.useFixture(fixtures.MonkeyPatch("containerhost.privileged.namespace", str))
        self.refused(HostActionFailed, "rdma", "iproute2", lambda: self.root.move_rdma("mlx5_0", 1))

    def test_network_functions(self) -> None:
        device = Device(ADDRESS, ADDRESS, Kind.NET, "15b3", "1018", "020000", "net", role=Role.VF, parent="x",
                        vf_index=0)
        self.refused(HostActionFailed, "ip", "iproute2",
                     NetFunction(device, ("ens1",), self.root, Host()).port)
        self.refused(HostActionFailed, "ip", "iproute2", lambda: links.move("lo", "lo", 0, "move lo"))

    def test_disks(self) -> None:
        self.refused(HostActionFailed, "blkid", "util-linux", lambda: volumes.file_system(Path("/dev/null")))
        self.refused(HostActionFailed, "unshare", "util-linux",
                     lambda: idmounts.user_namespace(idmounts.IdMap((), ())).__enter__())
        self.refused(DriverError, "e2fsck", "e2fsprogs", lambda: programs.run(["e2fsck"], 1, "disk"))
        self.refused(DriverError, "tar", "tar", lambda: programs.beside(["tar"], 1, "disk").__enter__())

    def test_transfers(self) -> None:
        self.refused(DriverError, "tar", "tar", lambda: streams.tar([], "disk"))
        self.refused(DriverError, "no-such-program", "install it", lambda: datafiles.tool(["no-such-program"], "disk"))
        self.refused(DriverError, "ssh", "openssh", lambda: Node("host").reading("x", Path("/x")).__enter__())
        self.useFixture(fixtures.MonkeyPatch("os.geteuid", lambda: 1000))
        self.refused(DriverError, "sudo", "sudo", lambda: node_agent.as_root(["load"]))


class Running(testtools.TestCase):
    def test_program_that_may_not_be_run(self) -> None:
        with tempfile.NamedTemporaryFile() as file:
            os.chmod(file.name, 0o600)
            error = self.assertRaises(HostActionFailed, run, [file.name], 1)
        self.assertIn("cannot be run", str(error))

    def test_time_limit(self) -> None:
        error = self.assertRaises(HostActionFailed, run, ["sleep", "60"], 0.1)
        self.assertIn("within 0.1 s", str(error))

    def test_time_limit_ends_what_the_program_started(self) -> None:
        marks = Path(self.useFixture(fixtures.TempDir()).path)
        script = f"(sleep 0.4; touch {marks}/goes-on) & echo $! > {marks}/pid; wait"
        for act in (lambda: run(["sh", "-c", script], 0.1), lambda: self.beside(["sh", "-c", script], 0.1)):
            self.assertRaises(HostActionFailed, act)
            pid = int((marks / "pid").read_text())
            await_that(lambda pid=pid: not runs(pid), "what the shell started has ended")
        self.assertEqual(["pid"], os.listdir(marks))

    def beside(self, command: list[str], timeout: float) -> None:
        with running(command, timeout, "it failed"):
            pass

    def test_program_that_no_signal_ends_is_left_behind(self) -> None:
        """As one that waits in the kernel (state D)."""
        kill, killed = os.killpg, self.useFixture(fixtures.MockPatch("os.killpg")).mock
        self.useFixture(fixtures.MonkeyPatch("containerhost.linux.run.KILL_TIMEOUT", 0.05))
        self.assertRaises(HostActionFailed, run, ["sleep", "60"], 0.05)
        self.assertRaises(HostActionFailed, self.beside, ["sleep", "60"], 0.05)
        with holding(["sh", "-c", "echo frozen; exec sleep 60"], "the disk", 60, "it waits") as process:
            self.assertEqual(-signal.SIGKILL, release(process, 0.05))
        left = {call.args[0] for call in killed.call_args_list}
        self.assertEqual(left, {pid for pid in left if runs(pid)})
        self.assertEqual(3, len(left))
        for pid in left:
            kill(pid, signal.SIGKILL)

    def test_status_and_output_are_the_callers(self) -> None:
        done = run(["sh", "-c", "echo out; echo err >&2; exit 3"], 60)
        self.assertEqual((3, "out\n", "err\n"), (done.returncode, done.stdout, done.stderr))


class HoldingTest(testtools.TestCase):
    def holding(self, script: str, timeout: float = 60) -> Any:
        return holding(["sh", "-c", script], "the disk", timeout, "it waits")

    def test_holder_goes_when_its_input_ends(self) -> None:
        with self.holding("echo frozen; cat; exit 3") as process:
            self.assertIsNone(process.poll())
            self.assertEqual(3, release(process))

    def test_holder_that_does_not_go_is_killed(self) -> None:
        with self.holding("echo frozen; exec sleep 60") as process:
            self.assertEqual(-signal.SIGKILL, release(process, 0.05))

    def test_reason_why_it_does_not_hold(self) -> None:
        for script, timeout, words in (("echo it is busy", 60, "the disk cannot be frozen: it is busy"),
                                       ("exit 1", 60, "the disk cannot be frozen: killed"),
                                       ("cat", 0, "the disk cannot be frozen within 0 s: it waits")):
            error = self.assertRaises(HostActionFailed, self.holding(script, timeout).__enter__)
            self.assertEqual(words, str(error))


class DetachedTest(testtools.TestCase):
    def test_session_directory_and_streams_are_its_own(self) -> None:
        with detached(["sleep", "60"]) as process:
            self.assertEqual(process.pid, os.getsid(process.pid))
            self.assertEqual({"/", os.devnull}, {os.readlink(f"/proc/{process.pid}/{name}") for name in (
                "cwd", "fd/0", "fd/1", "fd/2")})
            process.kill()


class ConfinedTest(testtools.TestCase):
    def test_a_program_has_room_for_its_threads_whatever_processors_there_are(self) -> None:
        done = subprocess.run([*confined(20), sys.executable, "-c", TRIED], capture_output=True, text=True,
                              check=False, timeout=60)
        self.assertEqual((0, ""), (done.returncode, done.stderr))
