"""The check of a node, on the real LXD."""

import json

import testtools

from tests.functional_one.node import Node


class InstallTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.node = self.useFixture(Node())

    def check(self, *arguments: str) -> tuple[int, dict[str, list[str]]]:
        result = self.node.command(f"lxdone-install node --json {' '.join(arguments)}")
        return result.status, json.loads(result.out)

    def test_a_node_in_order(self) -> None:
        status, found = self.check("--user", "root")
        self.assertEqual((0, {name: [] for name in ("options", "engine", "devices", "commands", "consoles", "sudo")}),
                         (status, found))

    def test_what_is_wrong_is_told(self) -> None:
        status, found = self.check("--user", "no-such-user")
        self.assertEqual((1, ["sudo"]), (status, [name for name, complaints in found.items() if complaints]))
        self.node.configure('allow_nesting = "yes"\n')
        status, found = self.check("--user", "root")
        self.assertEqual(1, status)
        self.assertIn("allow_nesting must be a bool", found["options"][0])
        self.node._conf.write_text(f'endpoint = "{self.node.lxd.socket}"\nstorage_pool = "none"\n')
        self.assertIn("none", self.check("--user", "root")[1]["engine"][0])
