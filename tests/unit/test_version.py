# SPDX-License-Identifier: Apache-2.0
"""Every command of an operator tells the version, which setup.cfg alone has."""

import configparser
import contextlib
import io
from importlib import metadata
from pathlib import Path
from unittest import mock

import testtools

DISTRIBUTION = metadata.distribution("nova-lxd-ext")
SETUP = Path(__file__).parents[2] / "setup.cfg"
# Docker's runtime passes each argument on to runc; the guest's helper is one file that is copied into images.
WITHOUT = {"containerhost-ociruntime", "containerhost-guest"}


class VersionTest(testtools.TestCase):
    def test_it_is_that_of_setup_cfg(self) -> None:
        """Between two releases it has the number of commits, too."""
        setup = configparser.ConfigParser()
        setup.read(SETUP)
        self.assertEqual(setup["metadata"]["version"], DISTRIBUTION.version.partition(".dev")[0])

    def test_every_command_tells_it(self) -> None:
        for point in DISTRIBUTION.entry_points.select(group="console_scripts"):
            if point.name in WITHOUT:
                continue
            told = io.StringIO()
            with self.subTest(point.name), mock.patch("sys.argv", [f"/usr/bin/{point.name}", "--version"]), \
                    contextlib.redirect_stdout(told), mock.patch("os.chdir"):
                with contextlib.suppress(SystemExit):  # as click ends
                    self.assertEqual(0, point.load()())
                # click names this test's own program.
                self.assertEqual(f"version {DISTRIBUTION.version}\n", told.getvalue().partition(", ")[2], point.name)
