# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from unittest import mock

import fixtures
import testtools

from containerhost.engines.docker.privileged import DockerPrivileged
from containerhost.errors import HostActionFailed
from containerhost.linux import charnodes, devicefilter

V1 = "12:pids:/docker/x\n5:devices:/docker/x\n0::/docker/x\n"
V2 = "0::/system.slice/docker-x.scope\n"


class GroupTest(testtools.TestCase):
    def groups(self, text):
        with mock.patch.object(charnodes.Path, "read_bytes", return_value=text.encode()):
            return charnodes.groups(7)

    def test_both_versions(self):
        self.assertEqual({"pids": "/docker/x", "devices": "/docker/x", "": "/docker/x"}, self.groups(V1))
        self.assertEqual({"": "/system.slice/docker-x.scope"}, self.groups(V2))

    def test_a_process_that_is_gone(self):
        self.assertRaises(HostActionFailed, charnodes.groups, 0x7FFFFFFF)


class PermitTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.MockPatchObject(charnodes, "CGROUPS", str(self.directory)))

    def permit(self, controllers, allowed):
        with mock.patch.object(charnodes, "groups", return_value=controllers):
            charnodes.permit(7, (195, 0), allowed)

    def test_version_1(self):
        (self.directory / "devices/docker").mkdir(parents=True)
        for allowed, name in ((True, "allow"), (False, "deny")):
            file = self.directory / f"devices/docker/devices.{name}"
            file.touch()
            self.permit({"devices": "/docker", "": "/"}, allowed)
            self.assertEqual("c 195:0 rwm", file.read_text())

    def test_what_the_kernel_refuses_is_told(self):
        self.assertRaises(HostActionFailed, self.permit, {"devices": "/nowhere"}, False)

    def test_version_2_asks_the_group_that_decides(self):
        (self.directory / "cgroup.controllers").touch()
        with mock.patch.object(devicefilter, "decided", lambda directory: directory.endswith("/docker/x")), \
                mock.patch.object(devicefilter, "decide") as decide:
            self.permit({"": "/docker/x/init.scope"}, True)
            decide.assert_called_once_with(f"{self.directory}/docker/x", (195, 0), True)
            error = self.assertRaises(HostActionFailed, self.permit, {"": "/elsewhere/x"}, True)
        self.assertIn("no device program is attached", str(error))


class GuardsTest(testtools.TestCase):
    def test_a_process_of_the_host_is_never_touched(self):
        for act in (lambda: DockerPrivileged().give_node(1, "/dev/nvidia0", (195, 0)),
                    lambda: DockerPrivileged().take_node(1, "/dev/nvidia0", (195, 0)),
                    lambda: DockerPrivileged().move_in_netdev(1, "lo", "eth0"),
                    lambda: DockerPrivileged().fetch_netdev(1, "eth0", "lo")):
            error = self.assertRaises(HostActionFailed, act)
            self.assertIn("not that of a running container", str(error))

    def test_only_nodes_that_can_be_granted(self):
        for path in ("/dev/../etc/x", "/dev/dri/../x", "/etc/nvidia0", "/dev/a/b", "/dev/..", "/dev/dri/.", "/dev/",
                     "/dev/dri/", "nvidia0", "/dev/nvidia0\n"):
            error = self.assertRaises(HostActionFailed, DockerPrivileged().give_node, 1, path, (195, 0))
            self.assertIn("is not a valid argument of this action", str(error), path)
