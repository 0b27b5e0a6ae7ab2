# SPDX-License-Identifier: Apache-2.0
"""systemd understands the units, and finds their sandboxes tight."""

import subprocess
import sys
from pathlib import Path

import fixtures
import testtools

UNITS = sorted((Path(__file__).parents[3] / "etc/systemd").glob("*.service"))
COMMAND = Path(sys.executable).with_name("containerhost")
# What may be tried against a service that was broken into, in tenths: systemd calls less than 45 "OK", and a service
# without a sandbox has 96. nova-compute is root, mounts and runs
# sudo.
EXPOSURE = {"containerhost-elastic.service": 38, "containerhost-exporter.service": 25, "containerhost-vfs.service": 30,
            "nova-compute-lxd.service": 85}


class Units(testtools.TestCase):
    def analyze(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(("systemd-analyze", *words), capture_output=True, text=True, timeout=60, check=False)

    def installed(self, unit: Path, sandbox: bool = True) -> str:
        """Copy a unit as it is where the command is installed; the path of the copy."""
        text = unit.read_text().replace("ExecStart=containerhost ", f"ExecStart={COMMAND} ").replace(
            "ExecStart=/opt/nova-lxd-ext/bin/", f"ExecStart={COMMAND.parent}/")
        if not sandbox:
            text = "\n".join(line for line in text.splitlines() if not line.startswith(("SystemCall", "Capability")))
        copy = Path(self.useFixture(fixtures.TempDir()).path, unit.name)
        copy.write_text(text)
        return str(copy)

    def test_every_unit_is_understood(self) -> None:
        self.assertEqual(sorted(EXPOSURE), [unit.name for unit in UNITS])
        for unit in UNITS:
            done = self.analyze("--man=no", "verify", self.installed(unit))
            self.assertEqual((0, "", ""), (done.returncode, done.stdout, done.stderr), unit.name)

    def test_every_unit_is_exposed_to_little(self) -> None:
        for unit in UNITS:
            options = ("--offline=true", "--no-pager", f"--threshold={EXPOSURE[unit.name]}")
            found = {sandbox: self.analyze("security", *options, self.installed(unit, sandbox))
                     for sandbox in (True, False)}
            self.assertEqual(0, found[True].returncode, found[True].stdout + found[True].stderr)
            self.assertNotEqual(0, found[False].returncode, f"{unit.name} passes without a sandbox")
