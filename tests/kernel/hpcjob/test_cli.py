# SPDX-License-Identifier: Apache-2.0
"""The command as a process of its own, with signals, against clouds on loopback."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import fixtures
import testtools

from tests import levels
from tests.unit.hpcjob import jobs
from tests.unit.hpcjob.fakeopennebula import SESSION, FakeOpenNebula
from tests.unit.hpcjob.fakeopenstack import FakeOpenStack

ROOT = Path(__file__).parents[3]
CLOUDS = """
clouds:
  test: {{auth_type: none, compute_endpoint_override: "{0}/compute/v2.1", network_endpoint_override: "{0}/network/v2.0",
          image_endpoint_override: "{0}/image/v2"}}
"""


class CommandTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.job = self.directory / "job.yaml"
        self.job.write_text(jobs.TEXT.replace("timeout: 30", "timeout: 300"))
        self.one = self.useFixture(FakeOpenNebula())
        self.stack = self.useFixture(FakeOpenStack())
        (self.directory / "one_auth").write_text(SESSION + "\n")
        (self.directory / "clouds.yaml").write_text(CLOUDS.format(self.stack.url))
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(self.directory), "PYTHONPATH": str(ROOT),
                            "ONE_AUTH": str(self.directory / "one_auth"), "ONE_XMLRPC": self.one.url,
                            "OS_CLIENT_CONFIG_FILE": str(self.directory / "clouds.yaml"), "OS_CLOUD": "test"}

    def process(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-m", "hpcjob", *arguments], text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, env=self.environment, cwd=self.directory)

    def run_command(self, *arguments: str) -> tuple[int, str, str]:
        process = self.process(*arguments)
        output, errors = process.communicate(timeout=120)
        return process.returncode, output, errors

    def test_start_and_delete_on_openstack(self) -> None:
        status, output, errors = self.run_command("start", "openstack", str(self.job))
        self.assertEqual(0, status, errors)
        first, *ranks = output.splitlines()
        ident = first.removeprefix("id ")
        self.assertEqual([f"{rank} {rank // 2} {ident}-{rank} 10.0.0.{rank + 10} {rank // 2:012x}"[:40] for rank in
                          range(4)], [line[:40] for line in ranks])
        self.assertEqual(0, self.run_command("delete", "openstack", ident)[0])
        self.assertEqual({"servers": 0, "ports": 0, "groups": 0}, self.stack.left())

    def test_replace_a_member(self) -> None:
        ident = json.loads(self.run_command("start", "openstack", str(self.job), "--json")[1])["id"]
        record = self.directory / ".local/state/hpcjob" / ident / "record.json"
        self.assertEqual(0o600, record.stat().st_mode & 0o777)
        replace = ("replace", "openstack", ident, "1")
        status, output, errors = self.run_command(*replace)
        self.assertEqual((3, ""), (status, output))
        self.assertIn(f"{ident}-1 runs", errors)
        for words in (("replace", "openstack", ident, "4"), ("replace", "opennebula", ident, "1"),
                      ("replace", "openstack", "wave-2", "1")):
            self.assertEqual(1, self.run_command(*words)[0])
        status, output, errors = self.run_command(*replace, "--force")
        self.assertEqual((0, f"1 0 {ident}-1 10.0.0.11 00000000000a\n", ""), (status, output, errors))

        self.stack.undeletable = True
        removing = threading.Event()
        self.stack.after = lambda method, path: removing.set() if method == "DELETE" else None
        process = self.process(*replace, "--force")
        self.assertTrue(removing.wait(60))
        self.assertIn("another hpcjob is working on", self.run_command("delete", "openstack", ident)[2])
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(4, process.returncode, errors)
        self.assertIn("interrupted by SIGTERM. All other members are unchanged. Continue with: hpcjob replace", errors)
        self.stack.undeletable = False
        status, output, errors = self.run_command(*replace, "--json")
        member = {"rank": 1, "group": 0, "name": f"{ident}-1", "address": "10.0.0.11", "host": "00000000000a"}
        self.assertEqual((0, {"id": ident, "member": member}), (status, json.loads(output)))
        self.assertIn("is on its old host again", errors)  # the fake has one other host
        self.assertEqual({"servers": 4, "ports": 4, "groups": 1}, self.stack.left())
        self.assertNotIn("PRIVATE", errors)
        self.assertEqual(0, self.run_command("delete", "openstack", ident)[0])
        self.assertFalse(record.parent.exists())

    def test_job_whose_record_cannot_be_written_starts(self) -> None:
        (self.directory / ".local").write_text("")
        status, output, errors = self.run_command("start", "openstack", str(self.job))
        self.assertEqual(0, status)
        self.assertIn("no member of this job can be replaced: ", errors)
        self.assertEqual(0, self.run_command("delete", "openstack", output.split()[1])[0])

    @levels.exhaustive("the same command on OpenStack stays")
    def test_start_and_delete_on_opennebula(self) -> None:
        status, output, errors = self.run_command("start", "opennebula", str(self.job), "--json")
        self.assertEqual(0, status, errors)
        told = json.loads(output)
        self.assertEqual(["node0", "node0", "node1", "node1"], [member["host"] for member in told["members"]])
        for said in ("", f"job {told['id']}: nothing was found that this user may remove\n"):
            self.assertEqual((0, "", said), self.run_command("delete", "opennebula", told["id"]))
        self.assertEqual({"vms": 0, "groups": 0}, self.one.left())

    def test_signals_during_start_and_removal_leave_nothing(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self.one.room = 0
            waiting, removing = threading.Event(), threading.Event()

            def after(method: str, waiting: Any = waiting, removing: Any = removing) -> None:
                if method == "one.vmpool.infoextended":
                    (removing if waiting.is_set() else waiting).set()

            self.one.after = after
            process = self.process("start", "opennebula", str(self.job))
            self.assertTrue(waiting.wait(60))
            process.send_signal(number)
            self.assertTrue(removing.wait(60))
            process.send_signal(number)
            _, errors = process.communicate(timeout=60)
            self.assertEqual(1, process.returncode)
            self.assertIn(f"interrupted by {number.name}; all members are removed", errors)
            self.assertEqual({"vms": 0, "groups": 0}, self.one.left())

    def test_errors_are_messages(self) -> None:
        (self.directory / "one_auth").unlink()
        for arguments, words in ((("start", "opennebula", str(self.job)), "ONE_AUTH names a file with USER:TOKEN"),
                                 (("start", "openstack", str(self.job), "--os-cloud", "none"),
                                  "Cloud none was not found")):
            status, _, errors = self.run_command(*arguments)
            self.assertEqual(1, status)
            self.assertIn(words, errors)
            self.assertNotIn("Traceback", errors)
