# SPDX-License-Identifier: Apache-2.0
import testtools

from onedriver import actions
from onedriver.errors import BadInput
from tests.unit.onedriver.samples import ARGV, changed, sample


class ActionsTest(testtools.TestCase):
    def test_every_recorded_call_is_understood(self) -> None:
        seen = set()
        for calls in ARGV.values():
            for script, argv in calls.items():
                action = actions.LOCAL_NAMES.get(script, script)
                arguments, number, host = actions.split(action, argv)
                self.assertIn(number, (1, 2, 8, 11))
                self.assertIn(host, ("node1", "nodeL"))
                self.assertEqual(f"one-{number}", arguments.get("deploy_id", f"one-{number}"))
                seen.add(action)
        self.assertEqual(set(actions.ARGUMENTS), seen)

    def test_a_call_over_ssh(self) -> None:
        call = actions.call("attach_nic", ARGV["vmm"]["attach_nic"], sample("attach_nic.xml"))
        self.assertEqual(("attach_nic", 1, "node1", "one-1", "one-1-1"),
                         (call.action, call.vm_id, call.host, call.deploy_id, call.arguments["target"]))

    def test_a_deployment(self) -> None:
        call = actions.call("deploy", ARGV["vmm"]["deploy"], sample("deployment.xml"))
        self.assertEqual(("/var/lib/one//datastores/0/1/deployment.0", ""), (call.arguments["file"], call.deploy_id))

    def test_what_is_wrong_with_its_datastore_keeps_no_vm_from_its_end(self) -> None:
        for old, new in (("<TEMPLATE><ALLOW_ORPHANS>", "<TEMPLATE><LIMIT_MB>10G</LIMIT_MB><ALLOW_ORPHANS>"),
                         ("<TYPE>1</TYPE>", "<TYPE>9</TYPE>")):
            odd = changed("shutdown.xml", (old, new))
            self.assertEqual(1, actions.call("shutdown", ARGV["vmm"]["shutdown"], odd).vm_id)

    def test_a_local_call(self) -> None:
        call = actions.call("cancel", ARGV["vmm_local"]["cancel"], sample("cancel.base64"))
        self.assertEqual((8, "nodeL", "one-8"), (call.vm_id, call.host, call.deploy_id))

    def test_local_names_of_snapshot_scripts(self) -> None:
        call = actions.call("snapshotrevert", ARGV["vmm"]["snapshot_revert"], sample("snapshot_revert.xml"))
        self.assertEqual(("snapshot_revert", "snap-0"), (call.action, call.arguments["snapshot"]))

    def test_a_command_with_and_without_input(self) -> None:
        self.assertEqual(({"command": "cat", "stdin": "a b"}, 1, "n"), actions.split("exec", ["1", "n", "cat", "a b"]))
        self.assertEqual(({"command": "cat"}, 1, "n"), actions.split("exec", ["1", "n", "cat"]))

    def test_calls_that_are_not_oneds_are_refused(self) -> None:
        whole = sample("shutdown.xml")
        for script, argv, data, words in (
            ("explode", ["1", "n"], whole, "no action 'explode'"),
            ("shutdown", ["one-1", "n", "1"], whole, "called with 3 arguments, but oned gives 4"),
            ("shutdown", ["one-1", "n", "../1", "n"], whole, "'../1' is not a VM id"),
            ("shutdown", ["one-2", "n", "2", "n"], whole, "for VM 2, but standard input describes VM 1"),
            ("shutdown", ["one-1", "n", "1", "n"], sample("deployment.xml"), "is <VM>, not <VMM_DRIVER_ACTION_DATA>"),
            ("shutdown", ["one-1", "n", "1", "n"], b"<VMM_DRIVER_ACTION_DATA/>", "has no VM"),
            ("shutdown", ["one-1", "n", "1", "n"], whole[:4000], "EOT"),
            ("exec", ["1", "n"], whole, "called with 2 arguments"),
        ):
            self.assertIn(words, str(self.assertRaises(BadInput, actions.call, script, argv, data)))
