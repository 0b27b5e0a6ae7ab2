# SPDX-License-Identifier: Apache-2.0
"""Memory that the servers of a server group share, through nova's API."""

from tests.functional.nova import base  # isort: skip (decides how nova runs)

from typing import Any, ClassVar

from containerhost.linux.storage.memorymounts import MOUNTS
from tests import levels


class SharedMemoryTest(base.LxdServers):
    options: ClassVar = {(None, "allow_resize_to_same_host"): True}

    def group(self) -> str:
        return str(self.api.post_server_groups({"name": "job", "policy": "soft-affinity"})["id"])

    def member(self, flavor: str, group: str | None, expected: str = "ACTIVE") -> dict[str, Any]:
        body = self._build_server(image_uuid=self.image(), flavor_id=flavor, networks="none")
        hints = {"os:scheduler_hints": {"group": group}} if group else {}
        return self._wait_for_state_change(self.api.post_server({"server": body, **hints}), expected)

    def shell(self, server: dict[str, Any], script: str) -> str:
        return self.inside(server, "sh", "-c", script).output

    def shares(self) -> list[str]:
        with open("/proc/self/mounts", encoding="utf-8") as table:
            return [line.split()[1] for line in table if line.split()[1].startswith(f"{MOUNTS}/")]

    def stop_and_start(self, server: dict[str, Any]) -> None:
        for action, status in (("os-stop", "SHUTOFF"), ("os-start", "ACTIVE")):
            self.api.post_server_action(server["id"], {action: None})
            self._wait_for_state_change(server, status)

    def test_servers_of_one_group_share_memory(self) -> None:
        flavor, job = self.flavor(hpc__shared_memory="4"), self.group()
        first, second = self.member(flavor, job), self.member(flavor, job)
        other, none = self.member(flavor, self.group()), self.member(self.flavor(), job)
        self.shell(first, "umask 077; echo secret > /dev/shm/x")
        self.assertEqual("secret\n", self.shell(second, "cat /dev/shm/x"))
        for server in (other, none):
            self.assertEqual("", self.shell(server, "test -e /dev/shm/x && echo there"))
        self.stop_and_start(second)
        self.restart_compute_service(self.computes[base.HOST])
        self.assertEqual("secret\n", self.shell(second, "cat /dev/shm/x"))
        self.assertIn("No space left", self.shell(second, "dd if=/dev/zero of=/dev/shm/big bs=1M count=5 2>&1"))
        for server in (first, second, other, none):
            self._delete_server(server)
        self.assertEqual([], self.shares())
        self.assertEqual([], list((self.state / "owners/memory").glob("*.json")))
        self.assert_nothing_left()

    @levels.exhaustive("the engines' contract and units show it; one test of nova remains")
    def test_resize_takes_and_gives_it(self) -> None:
        job = self.group()
        flavors = [self.flavor(hpc__shared_memory="4"), self.flavor(), self.flavor(hpc__shared_memory="8")]
        server = self.member(flavors[0], job)
        for flavor, size in ((flavors[2], "size=8192k"), (flavors[1], None)):
            self.resize(server, flavor)
            mounts = self.shell(server, "cat /proc/mounts")
            if size:
                self.assertRegex(mounts, rf"/dev/shm tmpfs .*{size}")
            else:
                self.assertNotIn("nova-lxd-", mounts)
            self.revert(server)
            self.assertRegex(self.shell(server, "cat /proc/mounts"), r"/dev/shm tmpfs .*size=4096k")
        self._delete_server(server)
        self.assertEqual([], self.shares())

    @levels.exhaustive("the engines' contract and units show it; one test of nova remains")
    def test_what_cannot_be_is_refused_and_leaves_nothing(self) -> None:
        fits = self.flavor(hpc__shared_memory="128")
        for flavor, group, words in ((fits, None, "in no server group"),
                                     (self.flavor(hpc__shared_memory="129"), self.group(), "128 MiB of memory")):
            server = self.member(flavor, group, "ERROR")
            self.assertIn(words, str(self.reasons(server)))
            self._delete_server(server)
        job = self.group()
        first = self.member(fits, job)
        second = self.member(self.flavor(hpc__shared_memory="4"), job, "ERROR")
        self.assertIn("has 128 MiB, and 4 MiB are requested", str(self.reasons(second)))
        for server in (first, second):
            self._delete_server(server)
        self.assertEqual([], self.shares())
        self.assert_nothing_left()
