# SPDX-License-Identifier: Apache-2.0
"""Let a fuzzer guided by coverage (atheris, libFuzzer) look for bytes that a parser neither takes nor refuses."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import fixtures
import testtools

from tests import levels
from tests.commands import ROOT
from tests.kernel.fuzz.mutations import MUTATIONS, Mutation

SECONDS = int(os.environ.get("FUZZ_SECONDS", levels.budget(gate="3", exhaustive="30")))  # for each parser
REACHED = 60  # s; a fraction of it suffices
FOUND = 77


class ParsersTest(testtools.TestCase):
    @staticmethod
    def command(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "tests.kernel.fuzz.targets", *arguments]

    def parsers(self) -> dict[str, bool]:
        """Return whether a parser refuses anything, by its name."""
        done = subprocess.run(self.command(), cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
        found: dict[str, bool] = json.loads(done.stdout)
        return found

    def fuzz(self, name: str, seconds: int, *options: str, checkout: Path = ROOT) -> tuple[int, str]:
        """Run the fuzzer.

        :param checkout: that has the parser
        :returns: its status, and what it found with its trace
        """
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        environment = {**os.environ, "TMPDIR": str(directory), "PYTHONPATH": str(checkout)}
        done = subprocess.run(self.command(name, str(seconds), str(directory), *options), cwd=checkout, env=environment,
                              capture_output=True, text=True, timeout=seconds + 120, check=False)
        found = [file.read_bytes()[:4096] for file in directory.iterdir() if file.is_file() and "-" in file.name]
        return done.returncode, f"{found}\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}"

    def test_whatever_others_write_is_taken_or_refused(self) -> None:
        names = list(self.parsers())
        for name in levels.budget(gate=[levels.turn(names)], exhaustive=names):
            with self.subTest(name):
                status, said = self.fuzz(name, SECONDS)
                self.assertEqual(0, status, said)

    def test_refusals_are_reached(self) -> None:
        """The fuzzer finds an error that is raised: so it would find one that should not be."""
        names = [name for name, refuses in self.parsers().items() if refuses]
        for name in levels.budget(gate=[levels.turn(names)], exhaustive=names):
            with self.subTest(name):
                status, said = self.fuzz(name, REACHED, "--strict")
                self.assertEqual(FOUND, status, said)

    @levels.exhaustive("the strict run shows that errors are found")
    def test_removed_protection_is_found(self) -> None:
        self.assertEqual(MUTATIONS.keys(), self.parsers().keys())
        for name, mutation in MUTATIONS.items():
            with self.subTest(name):
                _, said = self.fuzz(name, REACHED, checkout=self.mutated(mutation))
                self.assertIn("Traceback (most recent call last)", said)

    def mutated(self, mutation: Mutation) -> Path:
        """Return a checkout without the protection, whose other packages are those of this one."""
        checkout = Path(self.useFixture(fixtures.TempDir()).path)
        for package in ("containerhost", "hpcjob", "hpcplan", "lxdone", "onedock", "onedriver", "tests"):
            if mutation.file.startswith(f"{package}/"):
                shutil.copytree(ROOT / package, checkout / package, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                (checkout / package).symlink_to(ROOT / package)
        file = checkout / mutation.file
        text = file.read_text()
        self.assertIn(mutation.protection, text, mutation.file)
        file.write_text(text.replace(mutation.protection, mutation.without))
        return checkout
