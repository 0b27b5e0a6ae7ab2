# SPDX-License-Identifier: Apache-2.0
"""Devices, drivers, virtual functions, IOMMU and GPUDirect RDMA."""

import os
from pathlib import Path

import fixtures
import testtools

from containerhost.linux.sysfs import Host
from containerhost.vendors.nvidia import installation


class ToolkitTest(testtools.TestCase):
    def found(self, printed: str) -> list[str]:
        """Check this machine with a tool that says which version it is."""
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        tool = directory / "nvidia-container-cli"
        tool.write_text(f"#!/bin/sh\nprintf '{printed}'\n")
        tool.chmod(0o755)
        self.useFixture(fixtures.EnvironmentVariable("PATH", f"{directory}:{os.environ['PATH']}"))
        return [finding.problem for finding in installation.check(Host()) if "toolkit" in finding.subject]

    def test_vulnerable_versions(self) -> None:
        for version in ("1.19.0", "1.17.8", "1.17.3", "1.9.0", "0.99.9"):
            self.assertIn("CVE-2026-24260", self.found(f"cli-version: {version}\\nlib-version: {version}\\n")[0])

    def test_safe_versions(self) -> None:
        for version in ("1.19.1", "1.20.0-rc.1", "2.0.0"):
            self.assertEqual([], self.found(f"cli-version: {version}\\nlib-version: {version}\\n"))

    def test_what_is_no_version(self) -> None:
        self.assertEqual([], self.found("something else"))

    def test_host_without_it(self) -> None:
        self.useFixture(fixtures.EnvironmentVariable("PATH", "/nonexistent"))
        self.assertEqual([], [finding for finding in installation.check(Host()) if "toolkit" in finding.subject])
