# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import fixtures
import testtools

from onedriver.node import probe_directory
from onedriver.node.probe_directory import Found


class ProbeDirectoryTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)

    def program(self, name: str, text: str, mode: int = 0o755) -> None:
        path = self.directory / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(mode)

    def run_all(self, limit: float = 60) -> Found:
        return probe_directory.run(self.directory, ["lxdone", "3", "node1"], b"<X/>", limit)

    def test_all_programs_with_arguments_and_input(self) -> None:
        self.program("b", "echo \"$*\"")
        self.program("a", "cat; echo")
        self.program("c.rpmsave", "echo no")
        self.program("readme", "echo no", 0o644)
        (self.directory / "sub").mkdir()
        self.assertEqual(Found(True, "<X/>\nlxdone 3 node1"), self.run_all())

    def test_a_directory_that_is_not_there_says_nothing(self) -> None:
        self.directory /= "none"
        self.assertEqual(Found(True, ""), self.run_all())

    def test_the_first_failure_is_the_answer(self) -> None:
        self.program("a", "echo found; echo 'not\nwell' >&2; exit 3")
        self.program("b", "echo never")
        self.assertEqual(Found(False, "a failed: not well"), self.run_all())

    def test_a_program_that_cannot_be_run(self) -> None:
        (self.directory / "a").write_text("#!/nonexistent\n")
        (self.directory / "a").chmod(0o755)
        found = self.run_all()
        self.assertFalse(found.success)
        self.assertIn("a cannot be run", found.text)

    def test_a_program_that_does_not_end_is_ended(self) -> None:
        self.program("a", "exec sleep 1000")
        self.assertEqual(Found(False, "a did not end within 0.2 s"), self.run_all(0.2))

    def test_a_program_that_reads_nothing(self) -> None:
        self.program("a", "exec echo fine")
        self.assertEqual(Found(True, "fine"), probe_directory.run(self.directory, [], b"x" * 1_000_000))
