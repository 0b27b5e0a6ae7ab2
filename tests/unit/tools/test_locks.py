# SPDX-License-Identifier: Apache-2.0
"""Compare the locked packages of CI with what the requirements allow."""

import configparser
import re
from pathlib import Path

import testtools
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
INSTALL = (ROOT / "tools/install").read_text()
LINE = re.compile(r"([\w.-]+)==(\S+) --hash=sha256:[0-9a-f]{64}")


def requirements(*files: str) -> list[Requirement]:
    return [Requirement(line) for file in files for line in (ROOT / file).read_text().splitlines()
            if line and not line.startswith("#")]


class LocksTest(testtools.TestCase):
    def locked(self, profile: str) -> dict[str, str]:
        """Return the versions by name; each line has one file's hash, and no address of it."""
        found = [LINE.fullmatch(line) for line in (ROOT / f"locks/{profile}.txt").read_text().splitlines()[1:]]
        self.assertNotIn(None, found)
        return {canonicalize_name(match[1]): match[2] for match in found}

    def test_locked_versions_satisfy_requirements_and_constraints(self) -> None:
        setup = configparser.ConfigParser()
        setup.read(ROOT / "setup.cfg")
        nova = [Requirement(line) for line in setup["extras"]["nova"].split()]
        for profile, constraints in (("test", "constraints.txt"), ("nova33", "constraints-2026.1.txt")):
            words = re.search(rf"^    {profile}\) requirements=\((.*?)\)", INSTALL, re.M | re.S)[1]
            wanted = [*requirements("requirements.txt", *re.findall(r"[\w-]+requirements\.txt", words)), *nova]
            locked = self.locked(profile)
            self.assertEqual(set(), {canonicalize_name(each.name) for each in wanted} - set(locked), profile)
            for each in (*wanted, *requirements(constraints)):
                version = locked.get(canonicalize_name(each.name))
                self.assertTrue(version is None or each.specifier.contains(version), f"{profile}: {each}")
