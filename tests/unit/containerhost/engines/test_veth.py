# SPDX-License-Identifier: Apache-2.0
"""Pairs of interfaces over a directory that stands for /sys/class/net."""

import pathlib
from typing import Any

import fixtures
import testtools

from containerhost.engines.network import veth
from containerhost.engines.network.veth import Pair, Veths
from containerhost.errors import HostActionFailed
from containerhost.linux.sysfs import Host
from tests.unit.nova.ports import Recorder

PAIR = Pair("tap1", "lxd1", "fa:16:3e:00:00:01", "driver server-1 port-1", mtu=1450, software_checksums=True)
MADE = [("make", "tap1", "lxd1", "fa:16:3e:00:00:01", 1450, "driver server-1 port-1", True), ("checksums", "lxd1")]


class VethsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.MonkeyPatch("containerhost.engines.network.veth.RETURN_TIMEOUT", 0.05))
        self.log: list[tuple[Any, ...]] = []
        self.veths = Veths(Recorder(self.log), Host(self.root))

    def interface(self, name: str, alias: str = "") -> None:
        directory = self.root / veth.DIRECTORY.lstrip("/") / name
        directory.mkdir(parents=True)
        (directory / "ifalias").write_text(f"{alias}\n")

    def test_made_where_there_is_nothing(self) -> None:
        self.assertFalse(self.veths.ready(PAIR))
        self.veths.make(PAIR)
        self.assertEqual(MADE, self.log)

    def test_one_that_is_there_is_ready(self) -> None:
        self.interface("tap1", PAIR.mark)
        self.interface("lxd1")
        self.assertTrue(self.veths.ready(PAIR))

    def test_one_whose_other_end_did_not_return_is_made_anew(self) -> None:
        self.interface("tap1", PAIR.mark)
        self.assertFalse(self.veths.ready(PAIR))
        self.veths.make(PAIR)
        self.assertEqual([("remove", "tap1"), *MADE], self.log)

    def test_what_limits_it_goes_with_it(self) -> None:
        for name in ("tap1", "ifb1"):
            self.interface(name)
        self.veths.remove("tap1")
        self.assertEqual([("remove", "ifb1"), ("remove", "tap1")], self.log)

    def test_one_that_a_killed_driver_did_not_mark_is_made_anew(self) -> None:
        self.interface("tap1")
        self.interface("lxd1")
        self.assertFalse(self.veths.ready(PAIR))
        self.veths.make(PAIR)
        self.assertEqual([("remove", "tap1"), *MADE], self.log)

    def test_somebody_elses_interface_is_left_alone(self) -> None:
        self.interface("tap1")
        for alias in ("", "driver server-2 port-1"):
            with self.subTest(alias):
                (self.root / veth.DIRECTORY.lstrip("/") / "tap1" / "ifalias").write_text(alias)
                error = self.assertRaises(HostActionFailed, self.veths.make, PAIR)
                self.assertIn("ip link delete tap1", str(error))
                self.assertEqual([], self.log)

    def test_marks_are_found_on_the_host(self) -> None:
        self.interface("tap1", PAIR.mark)
        self.interface("tap2", "driver server-2 port-2")
        self.interface("eth0")
        (self.root / veth.DIRECTORY.lstrip("/") / "bonding_masters").write_text("")
        self.assertEqual({"tap1": PAIR.mark}, self.veths.marked("driver server-1 "))
        self.assertEqual({"tap1", "tap2"}, set(self.veths.marked("driver ")))

    def test_what_is_gone_is_removed_already(self) -> None:
        self.veths.remove("tap1")
        self.assertEqual([], self.log)

    def test_limits_are_set_and_removed_again(self) -> None:
        self.useFixture(fixtures.MockPatchObject(veth.shutil, "which", return_value="/sbin/tc"))
        shape = veth.Shape(1, 1, 1)
        self.veths.limit("tap1", shape, shape)
        self.interface("ifb1")
        for _ in range(2):
            self.veths.limit("tap1", None, None)
        self.assertEqual([("shape", "tap1", 1, 1, 1), ("shape sent", "tap1", "ifb1", 1, 1, 1),
                          *[("unshape", "tap1"), ("unshape sent", "tap1", "ifb1")] * 2], self.log)
