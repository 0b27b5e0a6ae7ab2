# SPDX-License-Identifier: Apache-2.0
"""Discovery of the plug-ins that installed packages register."""

import importlib
import re
import sys
from pathlib import Path
from unittest import mock

import fixtures
import testtools

from containerhost import vendors
from containerhost.errors import DeviceError

MODULE = """
from containerhost.vendors.intel.vendor import Intel

class Other(Intel):
    name = "other"

class Outside(Intel):
    name = "outside"
    nodes = ("../etc/*",)
"""
ENTRY_POINTS = """
[console_scripts]
unrelated = othervendors:Other

[containerhost.vendors]
outside = othervendors:Outside
other = othervendors:Other
nvidia = othervendors:Other
missing = othervendors:Missing
"""


class Loading(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        (directory / "othervendors.py").write_text(MODULE)
        (directory / "othervendors-1.dist-info").mkdir()
        (directory / "othervendors-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: othervendors\n"
                                                                     "Version: 1\n")
        (directory / "othervendors-1.dist-info/entry_points.txt").write_text(ENTRY_POINTS)
        self.useFixture(fixtures.MockPatchObject(sys, "path", [str(directory), *sys.path]))
        self.addCleanup(sys.modules.pop, "othervendors", None)
        importlib.invalidate_caches()
        # stevedore keeps the entry points of a group for the life of the process.
        self.useFixture(fixtures.MockPatch("stevedore.ExtensionManager.ENTRY_POINT_CACHE", {}))
        vendors.load.cache_clear()
        self.addCleanup(vendors.load.cache_clear)

    def test_plug_ins_of_installed_packages_come_after_the_own_ones(self) -> None:
        log = self.useFixture(fixtures.FakeLogger("containerhost.vendors"))
        found = [(vendor.name, vendor.__module__) for vendor in vendors.load()]
        self.assertEqual([(name, f"containerhost.vendors.{name}.vendor") for name in ("amd", "intel", "net", "nvidia")]
                         + [("other", "othervendors")], found)
        for name in ("outside", "missing"):
            self.assertIn(f"vendor plug-in {name}", log.output)

    def test_missing_package_metadata_is_an_error(self) -> None:
        with mock.patch("stevedore.ExtensionManager", return_value=[]):
            error = self.assertRaises(DeviceError, vendors.load)
        self.assertIn("pip install -e .", str(error))


class Names(testtools.TestCase):
    def test_only_plug_ins_name_vendors(self) -> None:
        core = Path(vendors.__file__).parent.parent
        named = re.compile(r"nvidia|nvml|cuda|\bamd\b|amdgpu|\bi915\b|\bintel\b|mellanox", re.IGNORECASE)
        sources = [path for path in core.rglob("*.py") if path.relative_to(core).parts[0] != "vendors"]
        self.assertGreater(len(sources), 50)
        self.assertEqual([], [f"{path}:{number}" for path in sources
                              for number, line in enumerate(path.read_text().splitlines(), 1) if named.search(line)])
