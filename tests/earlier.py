# SPDX-License-Identifier: Apache-2.0
"""Provide the code of an earlier commit, for tests of upgrades and downgrades."""

import os
import subprocess
from pathlib import Path

import fixtures
import testtools

from tests.commands import ROOT

COMMIT = os.environ.get("UPGRADE_FROM", "HEAD~300")
PACKAGES = ("containerhost", "hpcplan", "lxdone", "nova_lxd_ext", "onedock", "onedriver")


def earlier_code(test: testtools.TestCase) -> Path:
    """Return a directory with the packages, readable for all; skip the test if the checkout lacks the commit."""
    path = Path(test.useFixture(fixtures.TempDir()).path)
    path.chmod(0o755)
    packed = subprocess.run(("git", "-c", f"safe.directory={ROOT}", "archive", COMMIT, *PACKAGES), cwd=ROOT,
                            capture_output=True, check=False)
    if packed.returncode:
        test.skipTest(f"this checkout does not have {COMMIT}: {packed.stderr.decode().strip()}")
    subprocess.run(("tar", "--extract", "--directory", path), input=packed.stdout, check=True)
    return path
