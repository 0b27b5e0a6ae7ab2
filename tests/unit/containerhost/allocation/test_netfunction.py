# SPDX-License-Identifier: Apache-2.0
from unittest import mock

import testtools

from containerhost.allocation.netfunction import NetFunction
from containerhost.errors import HostActionFailed
from containerhost.inventory.scan import scan
from containerhost.linux.sysfs import Host
from containerhost.privileged import Privileged
from tests.unit.containerhost.hosts import Broken

VF = "0000:5e:00.1"


class Renaming(Privileged):
    """:ivar early: the name that udev gives the interface before the first action gets to it; None where it does not
    """

    def __init__(self, tree, early):
        self.tree = tree
        self.early = early
        self.done = []

    def act(self, name):
        (directory,) = (self.tree.function(VF) / "net").iterdir()
        if self.early:
            directory.rename(directory.with_name(self.early))
            self.early = None
        if not directory.exists() or directory.name != name:
            raise HostActionFailed(f"there is no interface {name} on this host")
        self.done.append(name)
        return directory

    def rename_netdev(self, name, new):
        directory = self.act(name)
        directory.rename(directory.with_name(new))

    def link_down_and_flush(self, name):
        self.act(name)


class TestNames(testtools.TestCase):
    def function(self, early):
        tree = self.useFixture(Broken("small"))
        self.privileged = Renaming(tree, early)
        return NetFunction(scan(tree.host).get(VF), ("ibs1",), self.privileged, tree.host)

    def test_udev_gives_another_name_meanwhile(self):
        function = self.function("renamed0")
        function.rename(("ib7",))
        self.assertEqual((["renamed0"], ("ib7",)), (self.privileged.done, function.netdevs()))

    def test_udev_gives_just_that_name(self):
        function = self.function("ib7")
        function.rename(("ib7",))
        self.assertEqual(([], ("ib7",)), (self.privileged.done, function.netdevs()))
        function.link_down_and_flush()
        self.assertEqual(["ib7"], self.privileged.done)

    def test_names_and_mac_are_read_without_the_uses_of_the_host(self):
        function = self.function(None)
        with mock.patch.object(Host, "lines", side_effect=AssertionError("it reads routes")):
            self.assertEqual((("ibs1v0",), True), (function.netdevs(), bool(function.mac())))

    def test_a_refusal_is_one(self):
        function = self.function(None)
        self.privileged.act = lambda name: (_ for _ in ()).throw(HostActionFailed("busy"))
        self.assertRaises(HostActionFailed, function.rename, ("ib7",))
        self.assertRaises(HostActionFailed, function.link_down_and_flush)
