# SPDX-License-Identifier: Apache-2.0
import json
import os
import re
from pathlib import Path

import fixtures
import testtools
from click.testing import CliRunner

from containerhost.allocation.store import AllocationStore
from containerhost.errors import SpecError
from containerhost.inventory.scan import scan
from containerhost.operator import dump
from containerhost.operator.cli import main
from tests.unit.containerhost.hosts import Broken, shared
from tests.unit.containerhost.operator.test_cli import OWNER, Empty

COMMANDS = (("list", "--json"), ("topology", "--text"), ("topology", "--json"), ("rdma",), ("doctor",), ("vfs", "show"),
            ("choose", "--gpus", "1"), ("config", "nova"), ("config", "opennebula"))


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, arguments)
    return result.exit_code, result.output


class DumpTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.file = Path(self.useFixture(fixtures.TempDir()).path, "host.json")

    def dumped(self, root: Path | str, *options: str) -> str:
        status, output = run("dump", *options, "--root", str(root))
        self.assertEqual(0, status, output)
        self.file.write_text(output)
        return output

    def test_every_command_answers_as_on_the_host(self) -> None:
        root = shared("mixed").root
        self.dumped(root)
        for command in COMMANDS:
            with self.subTest(str(command)):
                self.assertEqual(run(*command, "--root", str(root)), run(*command, "--root", str(self.file)))

    def test_results_of_a_self_test_read_as_the_host_in_them(self) -> None:
        root = shared("small").root
        self.file.write_text(json.dumps({"version": 1, "steps": [], "host": json.loads(self.dumped(root))}))
        self.assertEqual(run("list", "--root", str(root)), run("list", "--root", str(self.file)))

    def test_allocations_and_taints_captured(self) -> None:
        tree = self.useFixture(Broken("mixed"))
        inventory = scan(tree.host)
        store = AllocationStore(tree.root / "var/lib/containerhost/owners")
        store.claim([inventory.get("0000:5e:00.1")], OWNER, inventory.related)
        store.block("0000:5e:00.1", "not clean")
        self.dumped(tree.root)
        self.assertEqual(run("list", "--root", str(tree.root)), run("list", "--root", str(self.file)))

    def test_nothing_but_what_commands_read_captured(self) -> None:
        tree = self.useFixture(Broken("mixed"))
        (tree.root / "proc/secret").write_text("password")
        self.assertNotIn("password", self.dumped(tree.root))

    def test_messages_of_devices_captured_and_no_others(self) -> None:
        tree = self.useFixture(Broken("mixed"))
        tree.path("/dev/kmsg").write_text("3,1,1,-;password\n"
                                          "3,2,2,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n")
        self.assertNotIn("password", self.dumped(tree.root))
        told = run("list", "--root", str(self.file))
        self.assertIn("Xid 79", told[1])
        self.assertEqual(run("list", "--root", str(tree.root)), told)

    def test_redacted_addresses_replaced_alike(self) -> None:
        root = shared("mixed").root
        devices = json.loads(run("list", "--json", "--root", str(root))[1])
        told = self.dumped(root, "--redact").lower()
        macs = {device["mac"] for device in devices if device["mac"]}
        guids = {device["rdma"]["node_guid"] for device in devices if device["rdma"]} - {None}
        self.assertTrue(macs and guids)
        for text in macs | guids | {device["uuid"] for device in devices if device["uuid"]}:
            if len(set(re.findall("[0-9a-f]", text.lower()))) > 1:
                self.assertFalse(text.lower() in told, text)
        after = json.loads(run("list", "--json", "--root", str(self.file))[1])
        self.assertEqual([device["id"] for device in devices], [device["id"] for device in after])
        self.assertEqual(len(macs), len({device["mac"] for device in after if device["mac"]}))

    def test_redacted_root_device_and_serial_number(self) -> None:
        hide = dump.redaction()
        self.assertEqual("root=redacted ro quiet", hide("/proc/cmdline", "root=/dev/sda1 ro quiet"))
        self.assertEqual("redacted\n", hide("/sys/class/dmi/id/board_serial", "CZ123\n"))
        self.assertEqual("0000:3b:00.0", hide("/x", "0000:3b:00.0"))
        self.assertEqual(hide("/x", "02:00:00:aa:bb:cc"), hide("/y", "02:00:00:AA:BB:CC"))

    def test_document_without_meaning_refused(self) -> None:
        for text in ("", "[]", "{}", '{"version": 2, "entries": {}}', '{"version": 1, "entries": {"/a": {}}}',
                     '{"version": 1, "entries": {"/a": {"file": 1}}}',
                     '{"version": 1, "entries": {"/a": {"pipe": ""}}}',
                     '{"version": 1, "entries": {"/a": {"data": "?"}}}'):
            self.file.write_text(text)
            status, output = run("list", "--root", str(self.file))
            self.assertEqual(1, status, text)
            self.assertIn("is not a captured host from `containerhost dump`", output)

    def test_no_path_or_link_leads_out_of_the_tree(self) -> None:
        for entries in (
            {"/../a": {"file": "x"}}, {"a": {"file": "x"}}, {"/a/../b": {"file": "x"}}, {"//a": {"file": "x"}},
            {"/a\0": {"file": "x"}}, {"/a": {"link": "/etc"}}, {"/a": {"link": ".."}}, {"/s/a": {"link": "../../etc"}},
            {"/s/a": {"link": "b/../../.."}}, {"/s/a": {"link": "b/../c"}}, {"/a": {"link": ""}},
            {"/s/t/a": {"link": "../.."}, "/s/t/a/b": {"file": "x"}},
        ):
            with self.subTest(str(entries)):
                directory = Path(self.useFixture(Empty()).path, "in", "tree")
                directory.mkdir(parents=True)
                self.file.write_text(json.dumps({"version": 1, "entries": entries}))
                self.assertRaises(SpecError, dump.restore, self.file, directory)
                self.assertEqual(["tree"], os.listdir(directory.parent))

    def test_tree_removed_after_the_command(self) -> None:
        self.dumped(self.useFixture(Empty()).path)
        temporary = self.useFixture(fixtures.TempDir()).path
        self.useFixture(fixtures.MockPatch("tempfile.tempdir", temporary))
        self.assertEqual(0, run("list", "--root", str(self.file))[0])
        self.assertEqual([], os.listdir(temporary))
