# SPDX-License-Identifier: Apache-2.0
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fixtures
import testtools

from containerhost.engines.docker.privileged import DockerPrivileged
from containerhost.errors import HostActionFailed, ResetRefused
from containerhost.linux import charnodes
from containerhost.linux.poll import wait_until
from containerhost.linux.process import childprocess
from containerhost.privileged import Privileged, by_bytes, run, write
from tests.commands import ROOT

NUMBER = (511, 7)  # of a node that no other process has


class TestArguments(testtools.TestCase):
    """The caller may be the weaker side: nothing that is no address, driver, interface or GUID gets any further."""

    def test_refused(self):
        root = Privileged()
        guid = "0000:0000:0000:0001"
        for action in (
            lambda: root.unbind("../../x", "mlx5_core"),
            lambda: root.unbind("0000:5e:00.1", "../../../etc"),
            lambda: root.bind("0000:5e:00.1\n", "mlx5_core"),
            lambda: root.reset("0000:5e:00.9"),
            lambda: root.rename_netdev("-all", "a/b"),
            lambda: root.rename_netdev("lo", ".."),
            lambda: root.link_down_and_flush("x" * 16),
            lambda: root.set_vf_guids("ib0; reboot", 0, guid, guid),
            lambda: root.set_vf_guids("ib0", 0, "00:11", guid),
            lambda: root.reset_gpu("nvidia", "all"),
            lambda: root.reset_gpu("../x", "0000:3b:00.0"),
            lambda: root.make_veth("a/b", "c", "fa:16:3e:00:00:01", None, "mark", True),
            lambda: root.make_veth("a", "c", "fa:16:3e:00:00:01; x", None, "mark", True),
            lambda: root.make_veth("a", "c", "fa:16:3e:00:00:01", None, "two\nlines", True),
            lambda: root.remove_veth("a/b"),
            lambda: root.set_link("", True),
            lambda: root.enslave("a", "b c"),
            lambda: root.compute_checksums("x" * 16),
            lambda: root.shape("a b", 1, 1, 1),
            lambda: root.shape_sent("a", "i b", 1, 1, 1),
            lambda: root.remove_shaper("a/b"),
            lambda: root.read_guest_file(os.getpid(), "../shadow.json"),
            lambda: root.write_guest_file(os.getpid(), "passwd", b""),
            lambda: root.read_guest_file(os.getpid(), "ack.json"),  # no container's process
            lambda: root.set_vf_port("ens9f0", 0, "all", 0),
            lambda: root.set_vf_link("ens9f0 up", 0, "auto"),
            lambda: root.set_vf_link("ens9f0", 0, "up"),
            lambda: root.set_vf_rate("ens9f0 vf", 0, 100),
        ):
            self.assertRaises(HostActionFailed, action)

    def test_guid_for_iproute2(self):
        self.assertEqual("b8:ce:f6:03:00:01:00:0a", by_bytes("b8ce:f603:0001:000a"))


class TestActions(testtools.TestCase):
    def test_a_failed_command_brings_its_words(self):
        absent = f"{self.useFixture(fixtures.TempDir()).path}/absent"
        error = self.assertRaises(HostActionFailed, run, ["ls", absent])
        self.assertIn(absent, str(error))

    def test_a_command_has_a_limit(self):
        error = self.assertRaises(HostActionFailed, run, ["sleep", "5"], 1)
        self.assertIn("within 1 s", str(error))

    def test_an_attribute_that_is_not_there_is_not_made(self):
        path = os.path.join(self.useFixture(fixtures.TempDir()).path, "reset")
        self.assertRaises(HostActionFailed, write, path, "1")
        self.assertFalse(os.path.exists(path))

    def test_inside_shows_this_process(self):
        seen = Privileged().inside(os.getpid())
        self.assertEqual((1, 3), seen.nodes["/dev/null"])
        self.assertIn("lo", seen.netdevs)
        self.assertRegex(seen.limits["memlock"], r"unlimited|\d+")

    def test_a_process_that_is_gone(self):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        self.assertRaises(HostActionFailed, Privileged().inside, child)

    def contained(self, stdin=None):
        """:returns: the first process of a container, as the host numbers it"""
        process = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", "sleep", "60"], stdin=stdin)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        self.assertTrue(wait_until(lambda: children.read_text().split(), 10))
        return int(children.read_text())

    def test_node_is_not_waited_for_without_end(self):
        """The tenant's /dev may be a file system that never answers."""
        self.useFixture(fixtures.MockPatchObject(childprocess, "TIMEOUT", 0.2))
        self.useFixture(fixtures.MockPatchObject(charnodes, "permit"))
        pid, other = self.contained(), self.contained()
        for name in ("remove", "create"):
            self.useFixture(fixtures.MockPatchObject(charnodes, name, lambda *arguments: time.sleep(60)))
        for act in (lambda: DockerPrivileged().take_node(pid, "/dev/nvidia0", (195, 0)),
                    lambda: DockerPrivileged().give_node(other, "/dev/nvidia0", (195, 0))):
            self.assertIn("not done within 0.2 s", str(self.assertRaises(HostActionFailed, act)))
        self.assertEqual([(pid, False), (other, True), (other, False)],
                         [(call.args[0], call.args[2]) for call in charnodes.permit.mock_calls])


class TestGpuReset(testtools.TestCase):
    """Against a stand-in for NVIDIA's tool, which is not on a machine without its driver."""

    def setUp(self):
        super().setUp()
        self.marks = Path(self.useFixture(fixtures.TempDir()).path) / "marks"
        self.useFixture(fixtures.MonkeyPatch("containerhost.vendors.nvidia.reset.MARKS", self.marks))

    def _with_tool(self, script, others=()):
        directory = self.useFixture(fixtures.TempDir()).path
        if script is not None:
            path = os.path.join(directory, "nvidia-smi")
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"#!/bin/sh\n{script}\n")
            os.chmod(path, 0o755)
        self.useFixture(fixtures.EnvironmentVariable("PATH", directory))
        return Privileged().reset_gpu("nvidia", "0000:3b:00.0", others)

    def test_done_or_impossible(self):
        for script, expected in ((None, False), ('[ "$1 $2" = "--gpu-reset --id=0000:3b:00.0" ]', True),
                                 ("echo 'GPU Reset is not supported on this device.'; exit 3", False)):
            self.assertIs(expected, self._with_tool(script))

    def test_refused(self):
        error = self.assertRaises(ResetRefused, self._with_tool, "echo 'GPU is in use by another client'; exit 1")
        self.assertIn("in use by another client", str(error))
        self.assertTrue(str(error).startswith("End what uses it, then `containerhost scrub 0000:3b:00.0`"), error)
        self.assertLessEqual(len(str(error).partition(". ")[0]), 100)

    def test_other_failures_are_told_in_the_tools_words(self):
        error = self.assertRaises(HostActionFailed, self._with_tool, "echo 'Unknown Error'; exit 1")
        self.assertNotIsInstance(error, ResetRefused)
        self.assertIn("Unknown Error", str(error))

    PERSISTENT = """
        state=$(cat {state})
        case "$*" in
            --query-gpu=persistence_mode*) echo "$state";;
            *--persistence-mode=0) echo Disabled > {state};;
            *--persistence-mode=1) echo Enabled > {state};;
            --gpu-reset*) [ "$state" = Disabled ] || {{ echo 'In use by another client'; exit 255; }}; {reset};;
        esac"""

    def test_persistence_mode_is_off_during_the_reset_and_restored_whatever_happens(self):
        state = Path(self.useFixture(fixtures.TempDir()).path, "state")
        self.useFixture(fixtures.EnvironmentVariable("PATH", os.environ["PATH"]))
        for before in ("Enabled", "Disabled"):
            for reset in ("true", "{ echo Unknown Error; exit 1; }", "{ echo In use by another client; exit 255; }"):
                state.write_text(before)
                script = "PATH=/usr/bin:/bin" + self.PERSISTENT.format(state=state, reset=reset)
                if reset == "true":
                    self.assertTrue(self._with_tool(script))
                else:
                    self.assertRaises(HostActionFailed, self._with_tool, script)
                self.assertEqual(before, state.read_text().strip(), reset)

    def test_persistence_mode_is_restored_by_the_reset_after_one_that_was_killed(self):
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        state, pid = directory / "state", directory / "pid"
        self.useFixture(fixtures.EnvironmentVariable("PATH", os.environ["PATH"]))
        state.write_text("Enabled")
        script = "PATH=/usr/bin:/bin" + self.PERSISTENT
        process = os.fork()
        if not process:
            pid.write_text(str(os.getpid()))
            self._with_tool(script.format(state=state, reset=f"kill -9 $(cat {pid})"))
            os._exit(0)
        self.assertEqual(signal.SIGKILL, os.WTERMSIG(os.waitpid(process, 0)[1]))
        self.assertEqual("Disabled", state.read_text().strip())
        self.assertTrue(self._with_tool(script.format(state=state, reset="true")))
        self.assertEqual("Enabled", state.read_text().strip())
        self.assertEqual([], list(self.marks.iterdir()))

    LINKED = """
        case "$*" in
            "--gpu-reset --id=0000:3b:00.0,0000:5e:00.0") exit 0;;
            --gpu-reset*) echo 'In use by another client'; exit 255;;
            *) echo Disabled;;
        esac"""

    def test_linked_gpus_are_reset_together_or_not_at_all(self):
        links = {frozenset(("0000:3b:00.0", "0000:5e:00.0")): 12}
        self.useFixture(fixtures.MonkeyPatch("containerhost.vendors.nvidia.nvml.query", dict))
        self.useFixture(fixtures.MonkeyPatch("containerhost.vendors.nvidia.nvml.links_between", lambda gpus: links))
        self.assertTrue(self._with_tool(self.LINKED, ["0000:5e:00.0", "0000:86:00.0"]))
        error = self.assertRaises(ResetRefused, self._with_tool, self.LINKED, ["0000:86:00.0"])
        self.assertTrue(str(error).startswith("Free 0000:5e:00.0 too, then `containerhost scrub 0000:3b:00.0`"), error)
        self.assertLessEqual(len(str(error).partition(". ")[0]), 100)

    def test_program_of_the_host_that_has_the_gpu_is_named(self):
        node = self.useFixture(fixtures.TempDir()).path + "/nvidia0"
        self.useFixture(fixtures.MonkeyPatch("containerhost.vendors.nvidia.reset.nodes", lambda host, address: (node,)))
        with open(node, "w", encoding="ascii"):
            error = self.assertRaises(ResetRefused, self._with_tool, "echo 'In use by another client'; exit 255")
        self.assertIn(f"({os.getpid()}), then `containerhost scrub 0000:3b:00.0`", str(error))
        self.assertTrue(str(error).startswith("Stop "), error)
        self.assertLessEqual(len(str(error).partition(". ")[0]), 110)


class TestRdmaNamespaces(testtools.TestCase):
    """An RDMA device is moved by ``rdma``, which takes names of network namespaces; here a program of that name."""

    def test_killed_move_leaves_no_name_that_keeps_the_namespace_and_is_repeatable(self):
        """A named namespace outlives its container: no interface of it would come back to the host."""
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        program = directory / "rdma"
        program.write_text("#!/bin/sh\nls /run/netns/$5 > $WHERE/seen && [ -e $WHERE/killed ] || "
                           "{ touch $WHERE/killed; kill -9 $KILLED; sleep 1; }\n")
        program.chmod(0o755)
        act = ("import os, sys; from containerhost.privileged import Privileged\n"
               "os.environ['KILLED'] = str(os.getpid()); Privileged().move_rdma('mlx5_0', int(sys.argv[1]))")
        script = ('mkdir -p /run/netns && mount -t tmpfs none /run/netns\n'
                  'unshare --net --pid --fork sleep 60 & sleep 1; first=$(cat /proc/$!/task/$!/children)\n'
                  '"$0" -c "$1" $first; [ -s $WHERE/seen ] && sleep 2\n'
                  '"$0" -c "$1" $first && echo repeated; ls /run/netns; kill -9 $first')
        done = subprocess.run(["unshare", "--mount", "sh", "-c", script, sys.executable, act], cwd=ROOT, timeout=60,
                              capture_output=True, text=True, check=False, env=os.environ | {
                                  "PATH": f"{directory}:{os.environ['PATH']}", "WHERE": str(directory)})
        self.assertEqual("repeated\n", done.stdout, done.stderr)
