# SPDX-License-Identifier: Apache-2.0
"""`containerhost vfs apply` on an emulated host, whose cards make and take away their functions."""

import os
import subprocess
import sys
from pathlib import Path

import fixtures
import testtools
from click.testing import CliRunner, Result

from containerhost.allocation.store import AllocationStore, Consumer
from containerhost.devices.model import Role
from containerhost.inventory.scan import scan
from containerhost.operator.cli import main
from containerhost.operator.vfs.provisioner import OPERATOR
from tests.fakehost.control import FakeHostControl
from tools.units import confined

NOBODY = 65534
FIRST, SECOND = "0000:5e:00.0", "0000:d8:00.0"


class ApplyTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host = FakeHostControl.from_environment()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)
        self.owners = self.directory / "owners"
        self.addCleanup(self.reset)

    def reset(self) -> None:
        for card in (FIRST, SECOND):
            self.host.set_num_vfs(card, 0)
            self.host.set_num_vfs(card, 2)

    def apply(self, content: str, *options: str) -> Result:
        file = self.directory / "vfs.yaml"
        file.write_text(content)
        return CliRunner().invoke(main, ["vfs", "apply", str(file), "--owners", str(self.owners), *options])

    def functions(self, card: str) -> int:
        return sum(device.role is Role.VF and device.parent == card and device.healthy for device in scan().devices)

    def numbers(self) -> tuple[int, int]:
        return self.functions(FIRST), self.functions(SECOND)

    def test_numbers_of_the_file_and_nothing_the_second_time(self) -> None:
        content = f"{FIRST}: 4\n{SECOND}: 0\n"
        done = self.apply(content)
        self.assertEqual(0, done.exit_code, done.output)
        self.assertEqual([f"{FIRST}: 4 virtual functions instead of 2", f"{SECOND}: 0 virtual functions instead of 2"],
                         done.stdout.splitlines())
        self.assertEqual((4, 0), self.numbers())
        before = scan().devices
        again = self.apply(content)
        self.assertEqual((0, 2), (again.exit_code, again.stdout.count("nothing to do")))
        self.assertEqual(before, scan().devices)
        self.assertEqual({}, AllocationStore(self.owners).records())

    def test_capabilities_of_the_unit_are_enough(self) -> None:
        """The records belong to nova-compute's user, as where that is not root."""
        self.owners.mkdir()
        os.chown(self.owners, NOBODY, NOBODY)
        file = self.directory / "vfs.yaml"
        file.write_text(f"{FIRST}: 4\n{SECOND}: 0\n")
        command = (Path(sys.executable).with_name("containerhost"), "vfs", "apply", file, "--owners", self.owners)
        done = subprocess.run((*confined("containerhost-vfs"), *command), capture_output=True, text=True, timeout=60,
                              check=False)
        self.assertEqual((0, ""), (done.returncode, done.stderr))
        self.assertEqual((4, 0), self.numbers())

    def test_dry_run_changes_nothing(self) -> None:
        done = self.apply(f"{FIRST}: 4\n", "--dry-run")
        self.assertEqual((0, f"{FIRST}: 4 virtual functions instead of 2\n"), (done.exit_code, done.stdout))
        self.assertEqual((2, 2), self.numbers())

    def test_functions_in_use_are_never_taken(self) -> None:
        inventory = scan()
        used = next(device for device in inventory.devices if device.parent == SECOND)
        consumer = Consumer("nova", "lxd", "instance-1", "uuid-1")
        AllocationStore(self.owners).claim([used], consumer, inventory.related)
        for count in (0, 1, 4):
            done = self.apply(f"{FIRST}: 4\n{SECOND}: {count}\n")
            self.assertEqual(1, done.exit_code)
            self.assertIn(f"{used.id} (a container has it)", done.stderr)
            self.assertEqual((2, 2), self.numbers())
        self.assertEqual(0, self.apply(f"{FIRST}: 4\n{SECOND}: 2\n").exit_code)
        self.assertEqual({used.id: consumer},
                         {name: record.consumer for name, record in AllocationStore(self.owners).records().items()})

    def test_failed_step_takes_the_others_back(self) -> None:
        self.host.unbind(SECOND)  # a card without its driver makes no functions
        self.addCleanup(self.host.bind, SECOND)
        done = self.apply(f"{FIRST}: 4\n{SECOND}: 3\n")
        self.assertEqual(1, done.exit_code)
        self.assertIn(f"{SECOND}/sriov_numvfs failed", done.stderr)
        self.assertEqual(2, self.functions(FIRST))
        self.assertEqual({}, AllocationStore(self.owners).records())

    def test_what_a_killed_run_held_is_taken_up_by_the_next(self) -> None:
        inventory = scan()
        AllocationStore(self.owners).claim([inventory.get(FIRST)], OPERATOR, inventory.related)
        self.host.set_num_vfs(FIRST, 0)
        self.assertEqual(0, self.apply(f"{FIRST}: 4\n").exit_code)
        self.assertEqual(4, self.functions(FIRST))
        self.assertEqual({}, AllocationStore(self.owners).records())

    def test_bad_files_change_nothing(self) -> None:
        for content, words in ((f"{FIRST}: 5\n", "can have 4"), (f"{FIRST}: many\n", "not a number"),
                               ("0000:99:00.0: 1\n", "no device"), (f"{FIRST}: 1\n{FIRST}: 2\n", "is a duplicate key")):
            done = self.apply(content)
            self.assertEqual(1, done.exit_code, content)
            self.assertIn(words, done.stderr)
        self.assertEqual((2, 2), self.numbers())
