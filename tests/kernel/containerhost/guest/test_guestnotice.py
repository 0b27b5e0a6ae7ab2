# SPDX-License-Identifier: Apache-2.0
"""Test the notice to a container: the document, the announcement, and the helper in the guest that reads both."""

import json
import os
import sys
from pathlib import Path

import fixtures
import testtools

from containerhost.engines.spec import Cpu, Memory
from containerhost.guest import guest, resources
from tests.unit.containerhost.engines.test_lxd_config import gpu_grant, vf_grant
from tests.unit.containerhost.guest.test_guestnotice import told


class HelperTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.MonkeyPatch("containerhost.guest.guest.POLL_INTERVAL", 0.0))
        self.useFixture(fixtures.MonkeyPatch("containerhost.guest.guest.SOCKETS", (str(self.directory / "no-sock"),)))
        self.before = told(cpu=Cpu(1), parts=(gpu_grant(), vf_grant()))

    def write(self, document: str) -> None:
        (self.directory / "resources.json").write_text(document)

    def acknowledged(self) -> int | None:
        file = self.directory / "ack.json"
        return json.loads(file.read_text())["generation"] if file.exists() else None

    def test_nothing_is_told(self) -> None:
        self.assertEqual(guest.NOT_TOLD, guest.main(["--directory", str(self.directory), "show"]))
        for text in ("{", "[]", "{}", '{"generation": "1"}'):
            self.write(text)
            self.assertIsNone(guest.load(str(self.directory)))

    def test_watch_acknowledges_what_is_and_what_is_announced(self) -> None:
        self.write(self.before)
        guest.watch(str(self.directory), [], looks=1)
        self.assertEqual(1, self.acknowledged())
        self.write(resources.announcing(self.before, told(self.before), 1))
        self.write(resources.announcing(self.before, told(self.before, memory=Memory(1)), 1))
        guest.watch(str(self.directory), [], looks=1)
        self.assertEqual(2, self.acknowledged())

    def test_a_command_that_fails_acknowledges_nothing(self) -> None:
        self.write(self.before)
        for status, expected in (("1", None), ("0", 1)):
            guest.watch(str(self.directory), [sys.executable, "-c", f"raise SystemExit({status})"], looks=1)
            self.assertEqual(expected, self.acknowledged())

    def test_faults(self) -> None:
        file = self.directory / "faults.json"
        for text, expected in (('{"schema": 1, "faults": ["0000:3b:00.0: Xid 48"]}', ["0000:3b:00.0: Xid 48"]),
                               ('{"faults": []}', []), ("{", []), ("[]", []), ('{"faults": 3}', [])):
            file.write_text(text)
            self.assertEqual(expected, guest.faults(str(self.directory)))
            self.assertEqual(int(bool(expected)), guest.main(["--directory", str(self.directory), "faults"]))

    def test_run_gives_threads_and_gpus(self) -> None:
        self.write(self.before)
        output = self.directory / "environment"
        child = os.fork()
        if child == 0:
            guest.main(["--directory", str(self.directory), "run", "--", "sh", "-c", f"env > {output}"])
        os.waitpid(child, 0)
        found = dict(line.split("=", 1) for line in output.read_text().splitlines() if "=" in line)
        self.assertEqual(["1"] * len(guest.THREADS), [found[name] for name in guest.THREADS])
        self.assertEqual(("GPU-1", "1"), (found["CUDA_VISIBLE_DEVICES"], found["CONTAINERHOST_GENERATION"]))

    def test_it_needs_nothing_but_python(self) -> None:
        """Alone in an image, without this project."""
        alone = self.directory / "containerhost-guest"
        alone.write_text(Path(guest.__file__).read_text())
        self.write(self.before)
        self.assertEqual(0, os.spawnl(os.P_WAIT, sys.executable, sys.executable, "-I", "-S", str(alone), "--directory",
                                      str(self.directory), "ack"))
        self.assertEqual(1, self.acknowledged())
