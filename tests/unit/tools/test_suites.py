# SPDX-License-Identifier: Apache-2.0
import re
from pathlib import Path

import testtools

ROOT = Path(__file__).parents[3]
SUITE = re.compile(r"""^\s*(?:.*;\s)?(?:queue\s|timed\s)?suite\s+\S+\s+\./(?P<directory>\S+)\s+\S+\s+"""
                   r"""(?P<tests>'[^']*'|\S+)""", re.M)
GUEST = re.compile(r"--test-path \./(\S+)")


class SuitesTest(testtools.TestCase):
    """A test file that no suite of tools/test runs looks like one that passes."""

    def test_every_test_file_is_in_exactly_one_suite(self) -> None:
        suites = [(match["directory"].rstrip(";"), match["tests"].strip("';"))
                  for match in SUITE.finditer((ROOT / "tools/test").read_text())]
        self.assertGreater(len(suites), 3)
        # The guest's first process determines what runs in the virtual machine.
        suites += [(directory, ".") for directory in GUEST.findall((ROOT / "tools/vm/init").read_text())]
        for file in sorted((ROOT / "tests").rglob("test_*.py")):
            path = str(file.relative_to(ROOT))
            name = path.removesuffix(".py").replace("/", ".")
            found = [suite for suite in suites if path.startswith(f"{suite[0]}/") and re.search(suite[1], name)]
            self.assertEqual(1, len(found), f"{path} is in {found}")

    def test_every_benchmark_is_tried_or_needs_more_than_the_tests(self) -> None:
        tried = set(re.findall(r"^\t(\w+)\.py", (ROOT / "tools/test").read_text(), re.M))
        programs = {path.stem for path in (ROOT / "bench").glob("*.py") if "__main__" in path.read_text()}
        self.assertEqual(programs - {"hpc", "opennebula_peer"}, tried)
