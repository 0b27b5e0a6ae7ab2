# SPDX-License-Identifier: Apache-2.0
"""The check of a node, on the real LXD."""

import json

import testtools

from tests.functional.lxd import memlock
from tests.functional_one.node import Node


class InstallTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.node = self.useFixture(Node())

    def check(self, *arguments: str) -> tuple[int, dict[str, list[str]]]:
        result = self.node.command(f"lxdone-install node --json {' '.join(arguments)}")
        return result.status, json.loads(result.out)

    def test_a_node_in_order(self) -> None:
        self.node.datastores.mkdir()
        status, found = self.check("--user", "root")
        names = ("options", "engine", "devices", "commands", "consoles", "containers", "datastores", "memlock", "sudo",
                 "tools")
        self.assertEqual((0, {name: [] for name in names}), (status, found))

    def test_missing_or_linked_directory_of_datastores_is_told(self) -> None:
        self.assertIn(f"install -d -o root -g root -m 750 {self.node.datastores}",
                      self.check("--user", "root")[1]["datastores"][0])
        self.node.remotes.joinpath("elsewhere").mkdir()
        self.node.datastores.symlink_to(self.node.remotes / "elsewhere")
        self.assertIn("has a link", self.check("--user", "root")[1]["datastores"][0])

    def test_limit_of_locked_memory_that_the_daemon_may_not_give_is_told(self) -> None:
        text = self.node._conf.read_text()
        self.node._conf.write_text(text.replace(f'memlock = "{memlock()}"', 'memlock = "unlimited"'))
        found = self.check("--user", "root")[1]["memlock"]
        self.assertEqual(memlock() == "unlimited", found == [])
        for complaint in found:
            self.assertIn(f'set memlock = "{memlock()}"', complaint)

    def test_what_is_wrong_is_told(self) -> None:
        status, found = self.check("--user", "no-such-user")
        wrong = [name for name, complaints in found.items() if complaints]
        self.assertEqual((1, ["datastores", "sudo"]), (status, wrong))
        self.node.configure('allow_nesting = "yes"\n')
        status, found = self.check("--user", "root")
        self.assertEqual(1, status)
        self.assertIn("allow_nesting must be a bool", found["options"][0])
        self.node._conf.write_text(f'endpoint = "{self.node.lxd.socket}"\nstorage_pool = "none"\n')
        self.assertIn("none", self.check("--user", "root")[1]["engine"][0])
