# SPDX-License-Identifier: Apache-2.0
"""Require that any archive is rebuilt below one directory, without relying on checks of other programs."""

import os
import subprocess
from pathlib import Path

import fixtures
import testtools
from hypothesis import HealthCheck, given, settings

from tests.unit.containerhost.images.test_members import MEMBERS, accepted, entry, rebuilt


class TestProperties(testtools.TestCase):
    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(MEMBERS)
    def test_gnu_tar_writes_nothing_outside(self, members):
        result = accepted([entry(name, kind, link) for name, kind, link, _, _ in members], False)
        with fixtures.TempDir() as directory:
            inside = Path(directory.path, "a", "b")
            inside.mkdir(parents=True)
            subprocess.run(["tar", "--extract", "--absolute-names", "--numeric-owner", "--directory", str(inside)],
                           input=result, check=True, capture_output=True)
            self.assertEqual(["a"], os.listdir(directory.path))
            self.assertEqual(["b"], os.listdir(inside.parent))


class TestKept(testtools.TestCase):
    def test_sparse_files_of_every_dialect_keep_their_holes(self):
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        with (directory / "sparse").open("wb") as file:
            file.seek(1 << 20)
            file.write(b"middle")
            file.truncate(5 << 20)
        for dialect in (("gnu",), ("pax", "--sparse-version=0.0"), ("pax", "--sparse-version=0.1"),
                        ("pax", "--sparse-version=1.0")):
            made = subprocess.run(["tar", "--create", "--sparse", f"--format={dialect[0]}", *dialect[1:],
                                   "--transform=s,^,usr/,", "--directory", str(directory), "sparse"], check=True,
                                  capture_output=True).stdout
            result = rebuilt(made)
            self.assertThat(len(result), testtools.matchers.LessThan(1 << 20))
            subprocess.run(["tar", "--extract", "--directory", str(directory)], input=result, check=True)
            self.assertEqual((directory / "sparse").read_bytes(), (directory / "usr/sparse").read_bytes(), dialect)
            self.assertThat((directory / "usr/sparse").stat().st_blocks, testtools.matchers.LessThan(1000))
