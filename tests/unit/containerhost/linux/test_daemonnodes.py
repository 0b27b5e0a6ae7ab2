# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path
from unittest import mock

import fixtures
import testtools

from containerhost.errors import HostActionFailed
from containerhost.linux import charnodes, daemonnodes


class NamesTest(testtools.TestCase):
    def test_device_and_path(self):
        for name, found in (
            ("unix.gpu--0000--3b--00--0.dev-dri-card0", ("gpu-0000-3b-00-0", "/dev/dri/card0")),
            ("unix.node-a.dev-nvidia--uvm--tools", ("node/a", "/dev/nvidia-uvm-tools")),
            ("unix.x.dev-a.b", ("x", "/dev/a.b")),
        ):
            self.assertEqual(found, daemonnodes.parted(name))

    def test_whose_directory_it_is(self):
        self.assertRaises(HostActionFailed, daemonnodes.home, os.getpid())
        self.assertRaises(HostActionFailed, daemonnodes.home, 1 << 30)


class NodesCase(testtools.TestCase):
    """Files stand for the nodes: making nodes takes root. A file's content is its device number."""

    def setUp(self):
        super().setUp()
        self.home = Path(self.useFixture(fixtures.TempDir()).path)
        self.directory = self.home / "devices/c1"
        self.directory.mkdir(parents=True)
        self.owners, self.numbers, self.permitted, self.rules = {}, {}, {}, True
        for name, stand_in in (("home", lambda server: str(self.home)), ("number_of", self.number_of),
                               ("permit", self.permit),
                               ("is_containers", lambda status: self.owners[status.st_ino] != 0),
                               ("is_fenced", lambda status: self.owners[status.st_ino] == 0)):
            self.useFixture(fixtures.MockPatchObject(daemonnodes, name, stand_in))
        self.useFixture(fixtures.MockPatchObject(charnodes, "root_of", lambda pid: (100000, 100000)))
        self.useFixture(fixtures.MockPatch("os.chown", self.chown))

    def permit(self, pid, number, allowed):
        self.permitted[number] = allowed
        return self.rules

    def number_of(self, status):
        return self.numbers.get(status.st_ino)

    def chown(self, path, user, group):
        self.owners[os.stat(path).st_ino] = user

    def node(self, name, number):
        path = self.directory / name
        path.touch()
        path.chmod(0o666)
        self.owners[path.stat().st_ino], self.numbers[path.stat().st_ino] = 100000, number
        return path

    def modes(self):
        return {path.name: path.stat().st_mode & 0o777 for path in self.directory.iterdir()
                if not path.name.startswith("unix.denied")}


class ForgetTest(NodesCase):
    def test_only_what_the_daemon_does_not_know_goes(self):
        self.node("unix.known.dev-nvidiactl", (195, 255))
        self.node("unix.gone.dev-nvidiactl", (195, 255))
        gone = self.node("unix.gone.dev-nvidia0", (195, 0))
        os.link(gone, self.home / "bound")
        for name in ("disk.x.dev-a", "unix.volume.dev-vdb"):  # no character nodes
            (self.directory / name).touch()
        with mock.patch.object(charnodes, "remove_from") as remove:
            self.assertEqual(2, daemonnodes.forget(7, "c1", 99, ["known"]))
        # Nodes of a device that the daemon knows stay in the container.
        self.assertEqual([mock.call(99, "/dev/nvidia0", (195, 0))], remove.mock_calls)
        self.assertEqual(0, (self.home / "bound").stat().st_mode & 0o777)
        self.assertEqual({"disk.x.dev-a", "unix.volume.dev-vdb", "unix.known.dev-nvidiactl"},
                         {name for name in self.modes() if not name.startswith(daemonnodes.KEPT)})

    def test_nothing_there(self):
        self.assertEqual((0, 0), (daemonnodes.forget(7, "c1", 99, []), daemonnodes.forget(7, "c2", 99, [])))


class FenceTest(NodesCase):
    def test_shared_node_is_fenced_with_the_last_device_that_needs_it(self):
        for gpu in ("a", "b"):
            self.node(f"unix.{gpu}.dev-nvidia{gpu}", (195, ord(gpu)))
            self.node(f"unix.{gpu}.dev-nvidiactl", (195, 255))
        os.link(self.directory / "unix.a.dev-nvidiactl", self.home / "bound")
        daemonnodes.fence(7, "c1", 99, ["a"])
        self.assertEqual({(195, 97): False}, self.permitted)
        self.assertEqual(["unix.a.dev-nvidiaa"], [name for name, mode in self.modes().items() if not mode])
        for path in self.directory.glob("unix.a.*"):
            path.unlink()  # as the daemon does
        daemonnodes.fence(7, "c1", 99, ["b"])
        self.assertEqual({0}, set(self.modes().values()))
        self.assertEqual(0, (self.home / "bound").stat().st_mode & 0o777)
        self.assertEqual({(195, 97): False, (195, 98): False, (195, 255): False}, self.permitted)

        daemonnodes.restore(7, "c1", 99, {"b": 0o660})  # the detachment of b was refused
        self.assertEqual({0o660}, set(self.modes().values()))
        self.assertEqual(0o660, (self.home / "bound").stat().st_mode & 0o777)
        self.assertEqual({(195, 97): False, (195, 98): True, (195, 255): True}, self.permitted)
        self.assertEqual([daemonnodes.DENIED.format(195, 97)], [path.name for path in self.directory.glob("*denied*")])

    def test_only_what_was_denied_is_permitted(self):
        """Where the rules cannot be changed, nothing is denied."""
        self.rules = False
        self.node("unix.a.dev-nvidia0", (195, 0))
        daemonnodes.fence(7, "c1", 99, ["a"])
        self.permitted.clear()
        daemonnodes.restore(7, "c1", 99, {"a": 0o666})
        self.assertEqual(({}, []), (self.permitted, list(self.directory.glob("*denied*"))))

    def test_what_was_detached_stays_fenced_when_the_device_comes_again(self):
        self.node("unix.a.dev-nvidiactl", (195, 255))
        self.node("unix.b.dev-nvidiactl", (195, 255))
        os.link(self.directory / "unix.a.dev-nvidiactl", self.home / "bound")
        for gpu in ("a", "b"):
            daemonnodes.fence(7, "c1", 99, [gpu])
            (self.directory / f"unix.{gpu}.dev-nvidiactl").unlink()
        self.node("unix.a.dev-nvidiactl", (195, 255))
        daemonnodes.restore(7, "c1", 99, {"a": 0o666})
        self.assertEqual({"unix.a.dev-nvidiactl": 0o666}, self.modes())
        self.assertEqual(0, (self.home / "bound").stat().st_mode & 0o777)

    def test_container_without_nodes(self):
        self.assertRaises(HostActionFailed, daemonnodes.fence, 7, "c2", 99, ["a"])
        daemonnodes.restore(7, "c2", 99, {"a": 0o666})
        self.assertEqual(({}, []), (self.permitted, list(self.directory.parent.glob("c2"))))

    def test_link_in_the_place_of_a_node_is_not_followed(self):
        target = self.node("outside", (195, 0))
        link = self.directory / "unix.a.dev-nvidia0"
        link.symlink_to(target)
        self.numbers[link.lstat().st_ino] = (195, 0)
        with mock.patch.object(daemonnodes, "number_of", lambda status: (195, 0)):
            self.assertRaises(HostActionFailed, daemonnodes.fence, 7, "c1", 99, ["a"])
        self.assertEqual(0o666, target.stat().st_mode & 0o777)


class PermitTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.groups = Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.MockPatchObject(daemonnodes, "CGROUPS", str(self.groups)))
        for group in ("lxc.payload.c1", "lxc.payload.c1/system.slice", "lxc.payload.c1/system.slice/lxc.payload.c2"):
            (self.groups / group).mkdir()
            for name in ("allow", "deny"):
                (self.groups / group / f"devices.{name}").touch()

    def written(self, name):
        return sorted(str(path.parent.relative_to(self.groups)) for path in self.groups.rglob(f"devices.{name}")
                      if path.read_text() == "c 195:0 rwm")

    def permit(self, group, allowed):
        with mock.patch.object(daemonnodes.controlgroups, "of", return_value=group):
            return daemonnodes.permit(7, (195, 0), allowed)

    def test_engines_group_is_denied_and_all_of_it_permitted(self):
        inner = {"devices": "/lxc.payload.c1/system.slice/lxc.payload.c2"}
        self.permit(inner, False)
        self.assertEqual(["lxc.payload.c1"], self.written("deny"))
        self.permit(inner, True)
        self.assertEqual(["lxc.payload.c1", "lxc.payload.c1/system.slice",
                          "lxc.payload.c1/system.slice/lxc.payload.c2"], self.written("allow"))

    def test_neither_the_hosts_group_nor_version_2_is_changed(self):
        for group in ({"devices": "/"}, {"devices": "/user.slice"}, {"": "/lxc.payload.c1"}, {}):
            self.assertFalse(self.permit(group, False))
        self.assertEqual([], self.written("deny"))

    def test_refusal_of_the_kernel_is_raised(self):
        (self.groups / "lxc.payload.c1/devices.deny").unlink()
        self.assertRaises(HostActionFailed, self.permit, {"devices": "/lxc.payload.c1"}, False)
        self.permit({"devices": "/lxc.payload.gone"}, False)

    def test_process_that_may_not_change_the_rules_denies_nothing(self):
        with mock.patch.object(daemonnodes, "write_attribute", side_effect=PermissionError(1, "not permitted")):
            self.assertFalse(self.permit({"devices": "/lxc.payload.c1"}, False))
            self.assertRaises(HostActionFailed, self.permit, {"devices": "/lxc.payload.c1"}, True)

    def test_walk_over_the_tenants_groups_has_a_time_limit(self):
        with mock.patch.object(daemonnodes, "WALK_TIMEOUT", -1.0):
            error = self.assertRaises(HostActionFailed, self.permit, {"devices": "/lxc.payload.c1"}, True)
        self.assertIn("too many control groups", str(error))
