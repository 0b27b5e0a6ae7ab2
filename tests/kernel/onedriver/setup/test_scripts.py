# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
from pathlib import Path

import fixtures
import testtools

from onedriver import actions

SCRIPTS = Path(__file__).parents[4] / "etc/opennebula/remotes"


class ScriptsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.bin = Path(self.useFixture(fixtures.TempDir()).path)
        self.give("id", "echo 9869")
        self.give("sudo", 'printf "%s\\n" "$@"')

    def give(self, name: str, line: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{line}\n")
        (self.bin / name).chmod(0o755)

    def asked(self, script: Path) -> list[str]:
        """Return what a script that oneadmin runs asks of sudo."""
        done = subprocess.run([script, "an argument"], env={"PATH": f"{self.bin}:{os.defpath}"}, check=True,
                              capture_output=True, text=True)
        return done.stdout.splitlines()

    def test_sudo_is_given_the_path_of_the_command(self) -> None:
        """OpenNebula's packages have it look for names in /sbin, /bin, /usr/sbin and /usr/bin only."""
        scripts = [path for path in SCRIPTS.rglob("*") if path.is_file() and "sudo" in path.read_text()
                   and path.name not in actions.IN_SCRIPTS]
        self.assertEqual({"lxdone", "onedock"}, {path.parts[-2] for path in scripts if path.parts[-3] == "vmm"})
        for script in scripts:
            command = "lxdone" if "lxdone" in str(script) else "onedock"
            self.assertEqual(["-n", command], self.asked(script)[:2], "one that is not there is told by its name")
        for command in ("lxdone", "onedock"):
            self.give(command, "")
        for script in scripts:
            command = "lxdone" if "lxdone" in str(script) else "onedock"
            self.assertEqual(["-n", f"{self.bin}/{command}"], self.asked(script)[:2])
