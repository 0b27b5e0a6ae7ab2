# SPDX-License-Identifier: Apache-2.0
"""A vendor plug-in outside the tree, installed as an administrator installs it, for the time of a test."""

import functools
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import fixtures

from containerhost import vendors

EXAMPLE = Path(__file__).parents[1] / "examples/vendor"


@functools.cache
def installed(package: Path) -> tempfile.TemporaryDirectory[str]:
    """Install a package once for each test process; the directory goes with the process."""
    directory = tempfile.TemporaryDirectory(prefix="outside-vendor-")
    source, target = f"{directory.name}/source", f"{directory.name}/site"
    shutil.copytree(package, source)  # a build writes files beside the source
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-cache-dir",
                    "--no-build-isolation", "--root-user-action", "ignore", "--target", target, source], check=True)
    os.chmod(directory.name, 0o755)
    return directory


class OutsideVendor(fixtures.Fixture):
    """Programs that the test starts find the plug-in too, by PYTHONPATH.

    :param package: the directory with its ``pyproject.toml``
    :param module: what the package is imported by
    """

    def __init__(self, package: Path = EXAMPLE, module: str = "exampleaccel") -> None:
        super().__init__()
        self._package = package
        self._module = module

    def _setUp(self) -> None:
        site = f"{installed(self._package).name}/site"
        path = os.pathsep.join(filter(None, (site, os.environ.get("PYTHONPATH"))))
        self.useFixture(fixtures.EnvironmentVariable("PYTHONPATH", path))
        self.useFixture(fixtures.MockPatchObject(sys, "path", [site, *sys.path]))
        self.addCleanup(sys.modules.pop, self._module, None)
        importlib.invalidate_caches()
        # stevedore keeps the entry points of a group for the life of the process.
        self.useFixture(fixtures.MockPatch("stevedore.ExtensionManager.ENTRY_POINT_CACHE", {}))
        vendors.load.cache_clear()
        self.addCleanup(vendors.load.cache_clear)
