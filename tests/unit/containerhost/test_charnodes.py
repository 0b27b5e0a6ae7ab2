from pathlib import Path
from unittest import mock

import fixtures
import testtools

from containerhost import charnodes
from containerhost.engines.docker.privileged import DockerPrivileged
from containerhost.errors import HostActionFailed

V1 = "12:pids:/docker/x\n5:devices:/docker/x\n0::/docker/x\n"
V2 = "0::/system.slice/docker-x.scope\n"


class GroupTest(testtools.TestCase):
    def group(self, text):
        with mock.patch("builtins.open", mock.mock_open(read_data=text)):
            return charnodes.group(7)

    def test_version_1(self):
        self.assertEqual("/sys/fs/cgroup/devices/docker/x", self.group(V1))

    def test_version_2_is_refused_with_a_reason(self):
        self.assertIn("version 2", str(self.assertRaises(HostActionFailed, self.group, V2)))


class CommandTest(testtools.TestCase):
    def test_allow_and_deny(self):
        folder = Path(self.useFixture(fixtures.TempDir()).path)
        (folder / "devices.allow").touch()
        with mock.patch.object(charnodes, "group", return_value=str(folder)):
            charnodes.command(7, "devices.allow", (195, 0))
            self.assertEqual("c 195:0 rwm", (folder / "devices.allow").read_text())

    def test_what_the_kernel_refuses_is_told(self):
        with mock.patch.object(charnodes, "group", return_value="/nowhere"):
            self.assertRaises(HostActionFailed, charnodes.command, 7, "devices.deny", (195, 0))


class GuardsTest(testtools.TestCase):
    def test_a_process_of_the_host_is_never_touched(self):
        for act in (lambda: DockerPrivileged().give_node(1, "/dev/nvidia0", (195, 0)),
                    lambda: DockerPrivileged().take_node(1, "/dev/nvidia0", (195, 0)),
                    lambda: DockerPrivileged().lend_netdev(1, "lo", "eth0"),
                    lambda: DockerPrivileged().fetch_netdev(1, "eth0", "lo")):
            error = self.assertRaises(HostActionFailed, act)
            self.assertIn("not that of a running container", str(error))

    def test_only_nodes_that_can_be_granted(self):
        for path in ("/dev/../etc/x", "/dev/dri/../x", "/etc/nvidia0", "/dev/a/b", "/dev/..", "/dev/dri/.", "/dev/",
                     "/dev/dri/", "nvidia0", "/dev/nvidia0\n"):
            error = self.assertRaises(HostActionFailed, DockerPrivileged().give_node, 1, path, (195, 0))
            self.assertIn("is not what this action takes", str(error), path)
