# SPDX-License-Identifier: Apache-2.0
"""Test that what examples/kolla says in several files agrees, and with the driver."""

import configparser
import json
import re
from pathlib import Path

import testtools

from nova_lxd_ext.conf import list_opts

KOLLA = Path(__file__).parents[3] / "examples/kolla"


class Kolla(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.conf = configparser.ConfigParser(default_section="")
        self.conf.read_string((KOLLA / "nova-lxd.conf").read_text())
        self.run_script = (KOLLA / "run").read_text()

    def test_options_are_the_drivers(self) -> None:
        known = {option.dest for group, options in list_opts() if str(group) == "lxd" for option in options}
        self.assertGreater(len(known), 10)
        self.assertLessEqual(set(self.conf["lxd"]), known)

    def test_sudo_allows_the_helper_that_is_configured(self) -> None:
        allowed = (KOLLA / "sudoers").read_text().partition("NOPASSWD: ")[2].strip()
        self.assertEqual(f"{self.conf['lxd_privileged']['helper_command']} *", f"sudo {allowed}")

    def test_container_has_the_directories_that_its_files_name(self) -> None:
        mounted = {where.partition(":")[0] for where in re.findall(r"--volume \S+?:(\S+)", self.run_script)}
        sources = {str(Path(file["source"]).parent)
                   for file in json.loads((KOLLA / "config.json").read_text())["config_files"]}
        self.assertLessEqual(sources | {"/var/lib/containerhost"}, mounted)
        state = re.search(r"^state=(\S+)", self.run_script, re.M)[1]
        self.assertEqual(state, str(Path(self.conf["lxd"]["endpoint"]).parent))
