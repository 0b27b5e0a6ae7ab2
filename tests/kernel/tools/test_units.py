# SPDX-License-Identifier: Apache-2.0
"""systemd understands the units, and finds their sandboxes tight."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import fixtures
import testtools

from tools.units import UNITS, confined, options

COMMAND = Path(sys.executable).with_name("containerhost")
# systemd's words for what may be tried against a service that was broken into; the figures differ between its releases.
# A service without a sandbox is "UNSAFE". nova-compute is root, mounts and runs sudo.
LEVELS = ("PERFECT", "SAFE", "OK", "MEDIUM", "EXPOSED", "UNSAFE")
EXPOSURE = {"containerhost-cdi.service": "OK", "containerhost-elastic.service": "OK",
            "containerhost-exporter.service": "OK", "containerhost-vfs.service": "OK",
            "nova-compute-lxd.service": "EXPOSED"}
# Directives of a service, or a reason for their absence.
SANDBOX = frozenset({
    "CapabilityBoundingSet", "DevicePolicy", "IPAddressDeny", "LockPersonality", "MemoryDenyWriteExecute",
    "NoNewPrivileges", "PrivateMounts", "PrivateTmp", "ProtectClock", "ProtectControlGroups", "ProtectHome",
    "ProtectHostname", "ProtectKernelModules", "ProtectKernelTunables", "ProtectSystem", "RestrictAddressFamilies",
    "RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID", "SystemCallArchitectures", "SystemCallFilter"})
WITHOUT = {
    "containerhost-elastic": {"IPAddressDeny": "serves metrics", "ProtectControlGroups": "freezes containers"},
    "containerhost-exporter": {"IPAddressDeny": "serves metrics"},
    "containerhost-vfs": {"ProtectKernelTunables": "writes numbers of functions to /sys"},
    "nova-compute-lxd": dict.fromkeys((
        "DevicePolicy", "IPAddressDeny", "MemoryDenyWriteExecute", "NoNewPrivileges", "PrivateMounts", "PrivateTmp",
        "ProtectClock", "ProtectControlGroups", "ProtectHome", "ProtectKernelModules", "ProtectKernelTunables",
        "ProtectSystem", "RestrictNamespaces", "RestrictSUIDSGID"),
        "starts sudo and mkfs, mounts where the host sees it, serves consoles, and writes wherever nova.conf says")}
OVERALL = re.compile(r"Overall exposure level for .*?: [0-9.]+ (\w+)")


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

    def test_every_unit_has_the_sandbox_that_it_can_have(self) -> None:
        for unit in UNITS:
            lacked = SANDBOX - options(unit.stem).keys()
            self.assertEqual(set(WITHOUT.get(unit.stem, ())), lacked, unit.name)

    def test_nova_compute_starts_helpers_by_sudo(self) -> None:
        if shutil.which("sudo") is None:
            self.skipTest("sudo is not installed")
        done = subprocess.run((*confined("nova-compute-lxd"), "sudo", "-n", "id", "-u"), capture_output=True, text=True,
                              timeout=60, check=False)
        self.assertEqual((0, "0\n", ""), (done.returncode, done.stdout, done.stderr))

    def exposure(self, unit: str) -> int:
        shown = self.analyze("security", "--offline=true", "--no-pager", unit)
        found = OVERALL.search(shown.stdout)
        self.assertIsNotNone(found, shown.stdout + shown.stderr)
        return LEVELS.index(found[1])

    def test_every_unit_is_exposed_to_little(self) -> None:
        for unit in UNITS:
            exposed = self.exposure(self.installed(unit))
            self.assertLessEqual(exposed, LEVELS.index(EXPOSURE[unit.name]), unit.name)
            self.assertLess(exposed, self.exposure(self.installed(unit, sandbox=False)), "as without a sandbox")
