# SPDX-License-Identifier: Apache-2.0
"""The Debian package that tools/package makes, installed on this machine without a trace."""

import os
import subprocess
import tempfile
from importlib.metadata import distribution
from pathlib import Path

import testtools

from tests import levels
from tests.functional.overlay import PACKAGES, OverlaidMachine

ROOT = Path(__file__).parents[2]
# tools/install put there what the package is made of: an emulated host has no network.
WHEELS = ROOT / ".cache/wheels"
# A login's environment: nothing of this checkout.
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8", "MANPAGER": "cat"}
# Docker starts it: a script beside the commands that pip creates.
DOCKER_RUNTIME = "containerhost-docker-runtime"
RUNTIMES = {DOCKER_RUNTIME, "containerhost-ociruntime"}
COMPLETE = """. /usr/share/bash-completion/completions/containerhost
COMP_WORDS=(containerhost topo) COMP_CWORD=1; _containerhost_completion containerhost; echo "${COMPREPLY[@]}"
. /usr/share/bash-completion/completions/containerhost-guest; complete -p containerhost-guest """
GUEST = "complete -o default -W 'show watch ack run follow faults' containerhost-guest"

LEFT = 'for file; do if [ -e "$file" ]; then echo "$file"; fi; done'


@levels.exhaustive("a package is built for minutes, of files that other suites run")
class PackageTest(testtools.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        directory = cls.enterClassContext(tempfile.TemporaryDirectory())
        made = subprocess.run((ROOT / "tools/package", "--extras", "", "--version", "1.2.3", "--output", directory),
                              env={**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(WHEELS)},
                              capture_output=True, text=True, timeout=600, check=False)
        if made.returncode:
            raise AssertionError(made.stdout + made.stderr)
        cls.package = made.stdout.split()[-1]

    def setUp(self) -> None:
        super().setUp()
        self.machine = self.useFixture(OverlaidMachine(*PACKAGES))

    def test_lintian_has_no_error_and_no_warning(self) -> None:
        checked = subprocess.run(("lintian", "--allow-root", "--tag-display-limit=0", self.package), env=ENVIRONMENT,
                                 capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual((0, "", ""), (checked.returncode, checked.stdout, checked.stderr))

    def call(self, *command: str) -> str:
        return self.machine.run(*command, environment=ENVIRONMENT)

    def test_commands_pages_completion_and_units_are_there_and_nothing_is_left_of_them(self) -> None:
        self.call("dpkg", "--install", self.package)
        self.call("rm", "/usr/bin/python3")  # the package depends on python3.N, which need not be the usual one
        files = self.call("dpkg", "--listfiles", "nova-lxd-ext").splitlines()
        commands = {Path(file).name for file in files if file.startswith("/usr/bin/")}
        points = distribution("nova-lxd-ext").entry_points.select(group="console_scripts")
        self.assertEqual({point.name for point in points if not point.extras} | {DOCKER_RUNTIME}, commands)
        for command in commands:
            self.assertIn(command, self.call("man", command))
        for command in commands - RUNTIMES:
            self.assertIn("sage: ", self.call(command, "--help"))
        self.assertIn("runc", self.call(DOCKER_RUNTIME, "--version"))
        self.assertEqual("containerhost, version 1.2.3\n", self.call("containerhost", "--version"))
        self.assertIn("NVIDIA", self.call("containerhost", "topology", "--text"))
        self.assertIn("0000:3b:00.0", self.call("containerhost", "list"))
        refused = str(self.assertRaises(AssertionError, self.call, "containerhost", "config", "nova"))
        self.assertIn("install nova-lxd-ext[nova]", refused)
        self.assertNotIn("Traceback", refused)
        self.assertIn("nova", self.call("containerhost", "config", "--help"))
        self.assertEqual(f"topology\n{GUEST}\n", self.call("bash", "-c", COMPLETE))
        samples = {file for file in files if file.startswith("/opt/nova-lxd-ext/share/nova-lxd-ext/")}
        self.assertLessEqual({f"/opt/nova-lxd-ext/share/nova-lxd-ext/{path.relative_to(ROOT / 'etc')}"
                              for path in (ROOT / "etc").rglob("*") if path.is_file()}, samples)
        self.assertIn("/usr/lib/sysctl.d/60-containerhost.conf", files)
        self.assertIn("/usr/lib/udev/rules.d/60-containerhost-cdi.rules", files)
        units = {Path(file).name for file in files if file.startswith("/usr/lib/systemd/system/")}
        self.assertEqual({f"containerhost-{name}.service" for name in ("cdi", "elastic", "exporter", "vfs")},
                         units - {"system"})
        self.call("dpkg", "--verify", "nova-lxd-ext")
        self.call("dpkg", "--remove", "nova-lxd-ext")
        ours = [file for file in files if "nova-lxd-ext" in file or "containerhost" in file]
        self.assertEqual("", self.call("sh", "-c", LEFT, "sh", *ours))
