# SPDX-License-Identifier: Apache-2.0
"""nova-compute finds lxd.LXDDriver whether the package was installed from a wheel or editable."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import fixtures
import testtools

from tests import levels

ROOT = Path(__file__).resolve().parents[2]

# As in nova.cmd.compute.main before it creates its service, without the service.
LOAD = """
import os_vif
from nova import objects
from nova.virt import driver
os_vif.initialize()
objects.register_all()
found = driver.load_compute_driver(None, "lxd.LXDDriver")
print(type(found).__module__, type(found).__name__, __import__("nova_lxd_ext").__file__, sep="\\n")
"""


class PackagingTest(testtools.TestCase):
    def run_python(self, *arguments: str, path: str | None = None) -> str:
        environment = {**os.environ, "PBR_VERSION": "0.0.1"} | ({"PYTHONPATH": path} if path else {})
        done = subprocess.run([sys.executable, *arguments], cwd="/", env=environment, capture_output=True, text=True,
                              timeout=300, check=False)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        return done.stdout

    def test_editable(self) -> None:
        self.assertEqual(["nova_lxd_ext.driver", "LXDDriver", str(ROOT / "nova_lxd_ext/__init__.py")],
                         self.run_python("-c", LOAD).splitlines()[-3:])

    @levels.exhaustive("a wheel is built for a minute, of files that other suites run")
    def test_wheel(self) -> None:
        directory = self.useFixture(fixtures.TempDir()).path
        source, site = f"{directory}/source", f"{directory}/site"
        # Of a copy, because a build leaves its own directories behind.
        shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info"))
        self.run_python("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", directory,
                        source)
        wheel = next(Path(directory).glob("*.whl"))
        self.run_python("-m", "pip", "install", "--quiet", "--no-deps", "--target", site, str(wheel))
        self.assertEqual(["nova_lxd_ext.driver", "LXDDriver", f"{site}/nova_lxd_ext/__init__.py"],
                         self.run_python("-c", LOAD, path=site).splitlines()[-3:])
        self.assertFalse(Path(site, "tests").exists(), "the wheel must not ship tests")
        remotes, conf = Path(directory, "remotes"), Path(directory, "conf")
        for place in (remotes, conf):
            place.mkdir()
        self.run_python("-m", "lxdone.install", "front-end", "--remotes", str(remotes), "--conf", str(conf), path=site)
        for driver in ("lxdone", "onedock"):
            self.assertEqual((ROOT / f"etc/{driver}.toml.sample").read_text(),
                             self.run_python("-m", f"{driver}.install", "sample", path=site))
        for name in ("nova/lxd.conf.sample", "metadefs/compute-lxd.json", "metadefs/compute-lxd-image.json"):
            self.assertEqual((ROOT / "etc" / name).read_text(), Path(site, "share/nova-lxd-ext", name).read_text())
        self.assertTrue(os.access(remotes / "vmm/lxdone/deploy", os.X_OK), "the wheel must ship OpenNebula's scripts")
