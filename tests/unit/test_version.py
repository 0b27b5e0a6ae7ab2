# SPDX-License-Identifier: Apache-2.0
"""Every command of an operator tells the version, which setup.cfg alone has."""

import configparser
import contextlib
import io
from importlib import metadata
from pathlib import Path
from unittest import mock

import testtools
from click.testing import CliRunner

from containerhost.operator import cli
from hpcjob import __main__ as hpcjob
from lxdone import __main__ as lxdone
from lxdone import install as lxdone_install
from onedock import __main__ as onedock
from onedock import install as onedock_install

VERSION = metadata.version("nova-lxd-ext")
SETUP = Path(__file__).parents[2] / "setup.cfg"


class VersionTest(testtools.TestCase):
    def test_it_is_that_of_setup_cfg(self) -> None:
        """Between two releases it has the number of commits, too."""
        setup = configparser.ConfigParser()
        setup.read(SETUP)
        self.assertEqual(setup["metadata"]["version"], VERSION.partition(".dev")[0])

    def test_commands_of_click(self) -> None:
        for command in (cli.main, hpcjob.main, lxdone_install.main, onedock_install.main):
            told = CliRunner().invoke(command, ["--version"])
            self.assertEqual((0, f"version {VERSION}\n"), (told.exit_code, told.output.partition(", ")[2]))

    def test_commands_that_oned_calls(self) -> None:
        for name, command in (("lxdone", lxdone.main), ("onedock", onedock.main)):
            told = io.StringIO()
            with mock.patch("sys.argv", [f"/usr/bin/{name}", "--version"]), contextlib.redirect_stdout(told), \
                    mock.patch("os.chdir"):
                self.assertEqual(0, command())
            self.assertEqual(f"{name}, version {VERSION}\n", told.getvalue())
