# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from lxdone.root import root_files
from onedriver.errors import DriverError

# Prints its arguments, and reports that an image has the snapshot of a killed command.
RBD = """#!/bin/sh
echo "$@" >> {log}
case "$*" in
*"snap list"*) echo '[{{"name": "lxdone-unfinished"}}]' ;;
*"device list"*) echo '{devices}' ;;
*"device map"*) {mapping} ;;
esac
"""
from tests.unit.lxdone.test_root_files import RootFilesCase


class RootFilesTest(RootFilesCase):
    def rbd(self, devices: str = "[]", mapping: str = "echo /dev/rbd0") -> None:
        program = self.directory / "rbd"
        program.write_text(RBD.format(log=self.directory / "log", devices=devices, mapping=mapping))
        program.chmod(0o755)

    def called(self) -> list[str]:
        lines = (self.directory / "log").read_text().splitlines()
        return [line.removeprefix("--id oneadmin ") for line in lines if "device list" not in line]

    def test_an_image_is_read_only_unless_it_is_replaced(self) -> None:
        self.rbd()
        with root_files.opened(self.root) as disk:
            self.assertEqual(Path("/dev/rbd0"), disk)
        with root_files.replaced(self.root):
            pass
        self.assertEqual(["device map --read-only one/one-5", "snap create one/one-5@lxdone-unfinished",
                          "device map one/one-5", "snap remove --no-progress one/one-5@lxdone-unfinished"],
                         self.called())

    def test_what_is_not_ended_is_taken_back(self) -> None:
        self.rbd()

        def fail() -> None:
            with root_files.replaced(self.root):
                raise KeyError("full")

        self.assertRaises(KeyError, fail)
        back = ["snap list --format json one/one-5", "snap rollback --no-progress one/one-5@lxdone-unfinished",
                "snap remove --no-progress one/one-5@lxdone-unfinished"]
        self.assertEqual(back, self.called()[-3:])
        (self.directory / "log").unlink()
        root_files.restore(self.root)
        self.assertEqual(back, self.called())

    def test_what_a_killed_command_left_mapped_is_mapped_anew(self) -> None:
        self.rbd('[{"pool": "one", "name": "one-5", "device": "/dev/rbd7"}]')
        root_files.opened(self.root).__enter__()
        self.assertIn("device unmap /dev/rbd7", self.called())

    def test_what_rbd_says_is_told(self) -> None:
        self.rbd(mapping="echo no such image >&2; exit 2")
        error = self.assertRaises(DriverError, root_files.opened(self.root).__enter__)
        self.assertIn("image one/one-5 of Ceph cannot be mapped: no such image", str(error))
