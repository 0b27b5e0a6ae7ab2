# SPDX-License-Identifier: Apache-2.0
"""Interfaces whose names a tenant chose come back to the host under the host's name."""

import json
import os
import subprocess
from unittest import mock

import testtools

from containerhost.errors import HostActionFailed
from containerhost.linux.network import links
from tests.waiting import await_that

OWN, PEER, INSIDE, OTHER = "tstlinks0", "tstlinks1", "ib0", "tstlinks2"


class AlternativeNamesTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.tenant = subprocess.Popen(["unshare", "--net", "sleep", "600"])
        self.addCleanup(self.tenant.wait)
        self.addCleanup(self.tenant.kill)
        self.namespace = f"/proc/{self.tenant.pid}/ns/net"
        await_that(lambda: os.readlink(self.namespace) != os.readlink("/proc/self/ns/net"), "the namespace is there")
        self.ip("link", "add", OWN, "type", "veth", "peer", "name", PEER)
        self.addCleanup(subprocess.run, ["ip", "link", "delete", PEER], check=True)
        links.move_in(OWN, self.namespace, INSIDE)

    def ip(self, *words: str, inside: bool = False) -> str:
        enter = ["nsenter", f"--net={self.namespace}"] if inside else []
        return subprocess.run([*enter, "ip", *words], check=True, capture_output=True, text=True).stdout

    def test_interface_comes_back_whatever_it_is_called_beside_its_name(self) -> None:
        for names in ((OWN,), (PEER,), (OWN, PEER, OTHER)):
            for name in names:
                self.ip("link", "property", "add", "dev", INSIDE, "altname", name, inside=True)
            links.fetch(INSIDE, self.namespace, OWN)
            (found,) = json.loads(self.ip("-json", "link", "show", "dev", OWN))
            self.assertEqual((OWN, []), (found["ifname"], found.get("altnames", [])))
            links.move_in(OWN, self.namespace, INSIDE)

    def test_many_and_odd_names(self) -> None:
        odd = [b"\xff\xfe", b'a"b', b"with space", b"line\nfeed"]
        many = [f"{number:03}{'x' * 100}".encode() for number in range(40)]
        for name in (*odd, *many, OWN.encode()):
            subprocess.run(["nsenter", f"--net={self.namespace}", "ip", "link", "property", "add", "dev", INSIDE,
                            "altname", name], check=name not in odd, capture_output=True)
        links.fetch(INSIDE, self.namespace, OWN)
        self.assertNotIn("altname", self.ip("link", "show", "dev", OWN))

    def test_interface_is_renamed_to_what_it_is_called_beside_its_name(self) -> None:
        links.fetch(INSIDE, self.namespace, OTHER)
        self.ip("link", "property", "add", "dev", OTHER, "altname", OWN)
        links.rename(OTHER, OWN)
        self.assertTrue(links.exists(OWN))

    def test_name_that_a_tenant_took_for_an_interface_that_came_back_by_itself_is_free_for_a_new_one(self) -> None:
        """The container ended by itself: the daemon moved its interface, with all of its names."""
        names = ("tstlinks3", "tstlinks4")
        for name in names:
            self.ip("link", "property", "add", "dev", INSIDE, "altname", name, inside=True)
        self.ip("link", "set", "dev", INSIDE, "netns", str(os.getpid()), inside=True)
        links.make_veth(*names, "02:00:00:00:00:01", None, "mark", False)
        self.addCleanup(links.remove_veth, names[0])
        self.assertEqual(set(names), set(names) & set(links.names()))
        links.free_name(PEER)
        self.assertTrue(links.exists(PEER))  # not an alternative one

    def test_interface_that_is_not_there_has_no_names(self) -> None:
        links.remove_altnames("tstlinks9")
        with mock.patch.object(links, "exists", side_effect=[True, False]):  # it leaves meanwhile
            links.remove_altnames("tstlinks9")
        self.assertRaises(HostActionFailed, links.fetch, "tstlinks9", self.namespace, OWN)
